#include "model/tokenizers/regex.hpp"

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <new>

namespace headrace::model {
namespace {

constexpr std::size_t kStackBytesMin = std::size_t{32} << 10U;
constexpr std::size_t kStackBytesMax = std::size_t{8} << 20U;

struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const noexcept {
    pcre2_compile_context_free(context);
  }
};

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text = {};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

void Regex::FreeCode::operator()(pcre2_real_code_8* code) const noexcept {
  pcre2_code_free(code);
}

void RegexMatcher::FreeData::operator()(pcre2_real_match_data_8* data) const noexcept {
  pcre2_match_data_free(data);
}

void RegexMatcher::FreeContext::operator()(pcre2_real_match_context_8* context) const noexcept {
  pcre2_match_context_free(context);
}

void RegexMatcher::FreeStack::operator()(pcre2_real_jit_stack_8* stack) const noexcept {
  pcre2_jit_stack_free(stack);
}

Result<Regex> Regex::compile(std::string_view pattern) {
  HEADRACE_ASSIGN(const std::string translated, pcre2_pattern_of(pattern));
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(
      pcre2_compile_context_create(nullptr));
  if (context == nullptr) {
    throw std::bad_alloc();
  }
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  PCRE2_SIZE offset = 0;
  Regex regex;
  regex.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                  translated.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                                  &code,
                                  &offset,
                                  context.get()));
  if (regex.code_ == nullptr) {
    return usage_error(fmt::format("the pattern '{}' cannot be compiled", pattern))
        .with_why(
            fmt::format("PCRE2 on '{}', at byte {}: {}", translated, offset, message_of(code)));
  }
  // Where there is no JIT the interpreter finds the same, more slowly.
  static_cast<void>(pcre2_jit_compile(regex.code_.get(), PCRE2_JIT_COMPLETE));
  return regex;
}

RegexMatcher::RegexMatcher(const Regex& regex)
    : code_(regex.code_.get()),
      data_(pcre2_match_data_create_from_pattern(code_, nullptr)),
      stack_(pcre2_jit_stack_create(kStackBytesMin, kStackBytesMax, nullptr)),
      context_(pcre2_match_context_create(nullptr)) {
  if (data_ == nullptr || context_ == nullptr) {
    throw std::bad_alloc();
  }
  pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
  std::size_t jit_bytes = 0;
  jit_ = pcre2_pattern_info(code_, PCRE2_INFO_JITSIZE, &jit_bytes) == 0 && jit_bytes > 0;
  ovector_ = pcre2_get_ovector_pointer(data_.get());
}

RegexMatcher::Outcome RegexMatcher::search(std::string_view text, std::size_t from) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found =
      jit_
          ? pcre2_jit_match(code_, subject, text.size(), from, 0, data_.get(), context_.get())
          : pcre2_match(
                code_, subject, text.size(), from, PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
  if (found >= 0) {
    return Outcome::kFound;
  }
  return found == PCRE2_ERROR_NOMATCH ? Outcome::kNothing : Outcome::kLimit;
}

}  // namespace headrace::model
