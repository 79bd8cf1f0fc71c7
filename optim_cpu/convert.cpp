// Plain loops over elements, and over groups for "q8", whose weights have a kernel.

#include "optim_cpu/convert.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/assert.hpp"
#include "core/dtype.hpp"
#include "optim_cpu/adamw.hpp"
#include "optim_cpu/adamw_q8.hpp"
#include "optim_cpu/decode_q8.hpp"
#include "optim_cpu/q8.hpp"
#include "optim_cpu/weights.hpp"

namespace headrace::optim {

namespace {

bool is_q8(const Optimizer& format) {
  return format.group_elements == kQ8BlockElements;
}

AdamWSpan planar_span(const Optimizer& format,
                      const TileMemory& tile,
                      std::int64_t begin,
                      std::int64_t elements) {
  const Dtype moment = format.planes.front().record_bytes == 2 ? Dtype::kBf16 : Dtype::kF32;
  const TileSegment whole{.elements = tile.tile_elements};
  return adamw_span({.weight = format.param_dtype, .moment = moment},
                    {.param = tile.param, .state = tile.state, .tile_elements = tile.tile_elements},
                    whole,
                    {.begin = begin, .elements = elements});
}

void read_planes(const AdamWSpan& span, const StateValues& values) {
  const bool bf16 = span.bf16_m != nullptr;
  for (std::size_t i = 0; i < values.param.size(); ++i) {
    values.param[i] = span.weight(static_cast<std::int64_t>(i));
  }
  for (std::size_t i = 0; i < values.m.size(); ++i) {
    values.m[i] = bf16 ? float_from_bf16(span.bf16_m[i]) : span.m[i];
    values.v[i] = bf16 ? float_from_bf16(span.bf16_v[i]) : span.v[i];
  }
}

void write_planes(const AdamWSpan& span, const StateValues& values) {
  for (std::size_t i = 0; i < values.param.size(); ++i) {
    if (span.high != nullptr) {
      const SplitWeight split = split_weight(values.param[i]);
      span.high[i] = split.high;
      span.low[i] = split.low;
    } else {
      span.param[i] = values.param[i];
    }
    if (span.bf16_m != nullptr) {
      span.bf16_m[i] = bf16_from_float(values.m[i]);
      span.bf16_v[i] = bf16_from_float(values.v[i]);
    } else {
      span.m[i] = values.m[i];
      span.v[i] = values.v[i];
    }
  }
}

// A group's place in a tile.
struct Q8Place {
  std::uint16_t* high = nullptr;
  Q8Planes planes = {};
  std::byte* scales = nullptr;
  std::int64_t element = 0;  // the group's first, in the tile

  [[nodiscard]] std::int64_t byte(std::size_t i) const {
    return q8_byte(element + static_cast<std::int64_t>(i));
  }
};

void read_group_moments(const Q8Place& place, const StateValues& values) {
  Q8Scales scales;
  std::memcpy(&scales, place.scales, sizeof(scales));
  for (std::size_t i = 0; i < values.m.size(); ++i) {
    values.m[i] = q8_decode_m(place.planes.m[place.byte(i)], scales.m);
    const float root = q8_decode_root(place.planes.v[place.byte(i)], scales.root);
    values.v[i] = root * root;
  }
}

void write_group(const Q8Place& place, const StateValues& values) {
  Q8Scales scales;
  for (std::size_t i = 0; i < values.param.size(); ++i) {
    scales.m = std::max(scales.m, std::fabs(values.m[i]));
    scales.root = std::max(scales.root, std::sqrt(values.v[i]));
  }
  std::memcpy(place.scales, &scales, sizeof(scales));
  const float m_factor = q8_encode_factor(scales.m, kQ8MSteps);
  const float root_factor = q8_encode_factor(scales.root, kQ8VSteps);
  for (std::size_t i = 0; i < values.param.size(); ++i) {
    const ShortSplitWeight weight = split_weight_short(values.param[i], kQ8ByteHalf);
    const std::int64_t byte = place.byte(i);
    place.high[i] = weight.high;
    place.planes.correction[byte] = weight.correction;
    place.planes.m[byte] = q8_encode_m(values.m[i], m_factor, kQ8MHalf);
    place.planes.v[byte] = q8_encode_root(std::sqrt(values.v[i]), root_factor, kQ8VHalf);
  }
}

// Calls visit(place, part of values) for each group.
template <class Visit>
void for_each_group(const TileMemory& tile,
                    std::int64_t begin,
                    const StateValues& values,
                    const Visit& visit) {
  const auto part = [](std::span<float> all, std::size_t at, std::size_t count) {
    return all.empty() ? all : all.subspan(at, count);
  };
  constexpr auto kGroup = static_cast<std::size_t>(kQ8GroupElements);
  const Q8Planes planes = q8_planes(tile.state, tile.tile_elements);
  for (std::size_t at = 0; at < values.param.size(); at += kGroup) {
    const std::size_t count = std::min(kGroup, values.param.size() - at);
    const std::int64_t element = begin + static_cast<std::int64_t>(at);
    const auto scale_bytes =
        static_cast<std::size_t>(element / kQ8GroupElements) * sizeof(Q8Scales);
    visit(Q8Place{.high = reinterpret_cast<std::uint16_t*>(tile.param) + element,
                  .planes = planes,
                  .scales = planes.scales + scale_bytes,
                  .element = element},
          StateValues{.param = part(values.param, at, count),
                      .m = part(values.m, at, count),
                      .v = part(values.v, at, count)});
  }
}

void read_q8(const TileMemory& tile, std::int64_t begin, const StateValues& values) {
  decode_q8_weights({.high = reinterpret_cast<const std::uint16_t*>(tile.param) + begin,
                     .correction = q8_planes(tile.state, tile.tile_elements).correction + begin,
                     .weights = values.param.data(),
                     .elements = static_cast<std::int64_t>(values.param.size())});
  if (!values.m.empty()) {
    for_each_group(tile, begin, values, read_group_moments);
  }
}

void check(const Optimizer& format, const TileMemory& tile, std::int64_t begin, std::size_t count) {
  HEADRACE_ASSERT(begin >= 0 && static_cast<std::int64_t>(count) <= tile.tile_elements - begin,
                  "a range lies within its tile");
  HEADRACE_ASSERT(begin % format.group_elements == 0, "a range starts where a group does");
}

}  // namespace

void read_state(const Optimizer& format,
                const TileMemory& tile,
                std::int64_t begin,
                const StateValues& values) {
  check(format, tile, begin, values.param.size());
  HEADRACE_ASSERT(values.m.size() == values.v.size(), "both moments or none");
  HEADRACE_ASSERT(values.m.empty() || values.m.size() == values.param.size(), "one length");
  if (is_q8(format)) {
    read_q8(tile, begin, values);
  } else {
    const auto elements = static_cast<std::int64_t>(values.param.size());
    read_planes(planar_span(format, tile, begin, elements), values);
  }
}

void read_weights(const Optimizer& format,
                  const TileMemory& tile,
                  float* weights,
                  Threads& threads) {
  constexpr std::int64_t kPartElements = kQ8StreamedElements;  // whole groups
  const std::int64_t parts = (tile.tile_elements + kPartElements - 1) / kPartElements;
  threads.parallel_for_ranges(parts, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t begin = first * kPartElements;
    const std::int64_t end = std::min(last * kPartElements, tile.tile_elements);
    read_state(
        format,
        tile,
        begin,
        {.param = {weights + begin, static_cast<std::size_t>(end - begin)}, .m = {}, .v = {}});
  });
}

void write_state(const Optimizer& format,
                 const TileMemory& tile,
                 std::int64_t begin,
                 const StateValues& values) {
  check(format, tile, begin, values.param.size());
  HEADRACE_ASSERT(values.m.size() == values.param.size() && values.v.size() == values.param.size(),
                  "one length");
  if (is_q8(format)) {
    for_each_group(tile, begin, values, write_group);
  } else {
    const auto elements = static_cast<std::int64_t>(values.param.size());
    write_planes(planar_span(format, tile, begin, elements), values);
  }
}

void convert_state(const Optimizer& source_format,
                   const TileMemory& source,
                   const Optimizer& target_format,
                   const TileMemory& target,
                   ConvertRange range) {
  constexpr std::int64_t kPart = 1024;  // elements at a time, a multiple of every group
  std::array<float, kPart> param;
  std::array<float, kPart> m;
  std::array<float, kPart> v;
  for (std::int64_t at = 0; at < range.elements; at += kPart) {
    const auto count = static_cast<std::size_t>(std::min(kPart, range.elements - at));
    const StateValues values{.param = std::span(param).first(count),
                             .m = std::span(m).first(count),
                             .v = std::span(v).first(count)};
    read_state(source_format, source, range.begin + at, values);
    write_state(target_format, target, range.begin + at, values);
  }
}

}  // namespace headrace::optim
