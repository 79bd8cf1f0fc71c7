// Contents of memory by address, and their names.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "scheduler/plan/program_checker.hpp"

namespace headrace::plan {

using Kind = Content::Kind;

namespace {

constexpr int kFirstStore = 2;  // spaces: device, host, then each buffer of the store

}  // namespace

std::string text(const Content& content) {
  return fmt::format("kind {} of unit {}, tile {}, version {}, micro-batches {}+{}, lease {:#x}",
                     static_cast<int>(content.kind),
                     content.unit,
                     content.tile,
                     content.version,
                     content.from,
                     content.count,
                     content.content);
}

ProgramChecker::Place ProgramChecker::place(const Access& access) const {
  return place(access.buffer, access.offset, access.bytes);
}

ProgramChecker::Place ProgramChecker::place(int buffer,
                                            std::size_t offset,
                                            std::size_t bytes) const {
  const Buffer& of = plan_.buffers[static_cast<std::size_t>(buffer)];
  const bool store = of.tier == MemoryTier::kStore;
  const std::size_t begin = (store ? 0 : of.offset) + offset;
  return {.space = store ? kFirstStore + buffer : static_cast<int>(of.tier),
          .begin = begin,
          .end = begin + bytes};
}

void ProgramChecker::set(const Place& place, const Content& content) {
  if (place.begin >= place.end) {
    return;
  }
  Memory& memory = spaces_[place.space];
  auto at = memory.lower_bound(place.begin);
  if (at != memory.begin()) {
    const auto before = std::prev(at);
    if (before->second.end > place.begin) {
      const Segment old = before->second;
      before->second.end = place.begin;
      if (old.end > place.end) {
        memory[place.end] = old;
      }
    }
  }
  at = memory.lower_bound(place.begin);
  while (at != memory.end() && at->first < place.end) {
    if (at->second.end > place.end) {
      memory[place.end] = at->second;
    }
    at = memory.erase(at);
  }
  memory[place.begin] = {.end = place.end, .content = content};
}

Content ProgramChecker::look(const Place& place, const char* what) {
  const Memory& memory = spaces_[place.space];
  auto at = memory.upper_bound(place.begin);
  std::optional<Content> found;
  std::size_t covered = place.begin;
  if (at != memory.begin()) {
    at = std::prev(at);
  }
  for (; at != memory.end() && at->first < place.end && covered < place.end; ++at) {
    if (at->second.end <= place.begin) {
      continue;
    }
    if (at->first > covered) {
      break;
    }
    if (found && *found != at->second.content) {
      fail(fmt::format("{}: holds {} and {}", what, text(*found), text(at->second.content)));
      return {};
    }
    found = at->second.content;
    covered = at->second.end;
  }
  if (found && covered < place.end) {
    fail(fmt::format("{}: only part of it was ever written", what));
  }
  return found.value_or(Content{});
}

void ProgramChecker::expect(const Place& place, const Content& content, const char* what) {
  Content found = look(place, what);
  if (content.content == 0) {
    found.content = 0;  // whatever lease it has
  }
  if (found != content) {
    fail(fmt::format("{}: {} is wanted, {} is there", what, text(content), text(found)));
  }
}

void ProgramChecker::fail(const std::string& what) {
  if (error_.empty()) {
    error_ = what;
  }
}

const TileSpec& ProgramChecker::tile(int unit, int number) const {
  return plan_.units[static_cast<std::size_t>(unit)].tiles[static_cast<std::size_t>(number)];
}

Content ProgramChecker::floats(int unit, int number, int version) const {
  return {.kind = Kind::kFloats, .unit = unit, .tile = number, .version = version};
}

Content ProgramChecker::param(int unit, int number, int version) const {
  Content content = floats(unit, number, version);
  content.kind = plan_.format.decodes(tile(unit, number)) ? Kind::kParam : Kind::kFloats;
  return content;
}

Content ProgramChecker::state(int unit, int number, int version) const {
  return {.kind = Kind::kState, .unit = unit, .tile = number, .version = version};
}

int ProgramChecker::version(int unit, int number) const {
  return tile(unit, number).frozen ? 0 : updates_wanted_;
}

}  // namespace headrace::plan
