#include "train/stop_text.hpp"

#include <algorithm>
#include <optional>

namespace headrace::train {

std::string StopText::push(std::string_view text) {
  if (stopped_) {
    return "";
  }
  held_ += text;
  std::optional<std::pair<std::size_t, std::size_t>> found;  // its end, and where it begins
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at != std::string::npos) {
      const std::pair<std::size_t, std::size_t> place(at + stop.size(), at);
      found = std::min(found.value_or(place), place);
    }
  }
  if (found) {
    stopped_ = true;
    held_.resize(found->second);
    return rest();
  }
  const std::size_t begin = begins_at();
  std::string shown = held_.substr(0, begin);
  held_.erase(0, begin);
  return shown;
}

// The first place from which on what is held begins one of the texts.
std::size_t StopText::begins_at() const {
  std::size_t longest = 0;
  for (const std::string& stop : stops_) {
    longest = std::max(longest, stop.size());
  }
  std::size_t at = held_.size() - std::min(held_.size(), longest);
  const auto begins_here = [&](const std::string& stop) {
    return stop.starts_with(std::string_view(held_).substr(at));
  };
  while (at < held_.size() && std::none_of(stops_.begin(), stops_.end(), begins_here)) {
    ++at;
  }
  return at;
}

}  // namespace headrace::train
