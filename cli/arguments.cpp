#include "cli/arguments.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>

#include "core/assert.hpp"

namespace headrace::cli {
namespace {

const std::vector<OptionSpec>& common_options() {
  static const std::vector<OptionSpec> options = {
      {.name = "--json", .help = "The result as one JSON document"},
      {.name = "--output",
       .value = "FILE",
       .help = "Write the result to FILE instead of standard output"},
      {.name = "--verbose", .help = "More of the log; where an error came from"},
  };
  return options;
}

// The parser and where it puts what it finds.
struct Parser {
  CLI::App app;
  std::map<std::string, std::vector<std::string>> positionals;
  std::map<std::string, std::vector<std::string>> values;
  std::map<std::string, std::size_t> flags;  // times given

  explicit Parser(const CommandSpec& spec) : app(spec.summary, "headrace " + spec.name) {
    app.set_help_flag("--help", "Print this help");
    for (const PositionalSpec& positional : spec.positionals) {
      CLI::Option* option =
          app.add_option(positional.name, positionals[positional.name], positional.help);
      option->option_text(positional.required ? "(required)" : " ")->required(positional.required);
      if (!positional.repeated) {
        option->expected(1)->allow_extra_args(false);
      }
    }
    for (const OptionSpec& option : spec.options) {
      add(option);
    }
    for (const OptionSpec& option : common_options()) {
      add(option);
    }
  }

  void add(const OptionSpec& spec) {
    if (spec.value.empty()) {
      app.add_flag(spec.name, flags[spec.name], spec.help);
      return;
    }
    CLI::Option* option = app.add_option(spec.name, values[spec.name], spec.help);
    option->expected(1)->allow_extra_args(false)->option_text(
        spec.repeated ? spec.value + " (may be repeated)" : spec.value);
    option->multi_option_policy(spec.repeated ? CLI::MultiOptionPolicy::TakeAll
                                              : CLI::MultiOptionPolicy::Throw);
    if (!spec.choices.empty()) {
      option->check(CLI::IsMember(spec.choices));
    }
  }
};

Error usage(const CommandSpec& spec, const std::string& what) {
  return usage_error(fmt::format("{}: {}", spec.name, what))
      .with_hint(fmt::format("headrace {} --help lists what it takes", spec.name));
}

// The first positional that is required and was not given.
std::string missing_of(const Parser& parser, const CommandSpec& spec) {
  for (const PositionalSpec& positional : spec.positionals) {
    if (positional.required && parser.app.count(positional.name) == 0) {
      return positional.name;
    }
  }
  return "something that is required";
}

template <class Number>
bool parse_whole(const std::string& text, Number& value) {
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  return code == std::errc() && stop == end;
}

}  // namespace

std::optional<std::string> Arguments::text(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    return std::nullopt;
  }
  return found->second.front();
}

std::vector<std::string> Arguments::all(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::vector<std::string>() : found->second;
}

Result<std::optional<std::int64_t>> Arguments::integer(const std::string& name,
                                                       std::int64_t least) const {
  const std::optional<std::string> given = text(name);
  if (!given) {
    return std::optional<std::int64_t>();
  }
  std::int64_t value = 0;
  if (!parse_whole(*given, value) || value < least) {
    return usage_error(
               fmt::format("{}: '{}' is not a whole number of at least {}", name, *given, least))
        .with_hint(fmt::format("as in {} {}", name, std::max<std::int64_t>(least, 1)));
  }
  return std::optional(value);
}

Result<std::optional<double>> Arguments::number(const std::string& name, double least) const {
  const std::optional<std::string> given = text(name);
  if (!given) {
    return std::optional<double>();
  }
  double value = 0;
  if (!parse_whole(*given, value) || !std::isfinite(value) || value < least) {
    return usage_error(fmt::format("{}: '{}' is not a number of at least {}", name, *given, least))
        .with_hint(fmt::format("as in {} 0.8", name));
  }
  return std::optional(value);
}

Result<Parsed> parse_arguments(const CommandSpec& spec, const std::vector<std::string>& words) {
  const auto parser = std::make_unique<Parser>(spec);
  try {
    std::vector<std::string> reversed(words.rbegin(),
                                      words.rend());  // CLI11 takes them from the back
    parser->app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    return Parsed{.arguments = {}, .help = true};
  } catch (const CLI::RequiredError&) {
    return usage(spec, fmt::format("{} is missing", missing_of(*parser, spec)));
  } catch (const CLI::Error& error) {
    return usage(spec, error.what());
  }
  Parsed parsed;
  for (const auto* given : {&parser->values, &parser->positionals}) {
    for (const auto& [name, values] : *given) {
      for (const std::string& value : values) {
        parsed.arguments.add(name, value);
      }
    }
  }
  for (const auto& [name, times] : parser->flags) {
    if (times > 0) {
      parsed.arguments.add(name, "");
    }
  }
  return parsed;
}

std::string help_text(const CommandSpec& spec) {
  return Parser(spec).app.help();
}

}  // namespace headrace::cli
