// Quantities with units: sizes, rates, durations, drive endurance; parsed from and formatted as
// text.
//
// Invariant: a number without a unit is an error, GB (1000^3) and GiB (1024^3) differ, and overflow
// is an error; what exact_*() writes, parse_*() reads back to the same value.
// Thread: any. Failure: a usage error that names the text, with a hint.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace headrace {

// "24GiB", "1.5 GB", "512B": B; KB MB GB TB PB (powers of 1000); KiB MiB GiB TiB PiB (of 1024).
// A fraction of a byte is rounded to the nearest byte.
[[nodiscard]] Result<std::uint64_t> parse_bytes(std::string_view text);

// "1.5GB/s", in bytes per second; greater than zero.
[[nodiscard]] Result<double> parse_rate(std::string_view text);

// "10min", "2s", "250ms", "1.5h", "2d", in seconds.
[[nodiscard]] Result<double> parse_duration(std::string_view text);

// "1200TBW" or "1.2PBW" as drives are sold: bytes that may be written over the drive's life.
[[nodiscard]] Result<double> parse_endurance(std::string_view text);

// "10B", "1.5 T", "300M", "2048": K, M, B, T are powers of 1000.
[[nodiscard]] Result<double> parse_count(std::string_view text);

// "800M/s", per second; greater than zero.
[[nodiscard]] Result<double> parse_count_rate(std::string_view text);

// "2TFLOPS" or "2 TFLOP/s", operations per second; greater than zero.
[[nodiscard]] Result<double> parse_flop_rate(std::string_view text);

// For people, rounded: "3.2 GiB", "412 MB/s", "2 min 5 s", "124.4 M".
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);
[[nodiscard]] std::string format_rate(double bytes_per_s);
[[nodiscard]] std::string format_duration(double seconds);
[[nodiscard]] std::string format_count(double count);

// For files, exact: "24GiB", "25GB/s", "1200TBW".
[[nodiscard]] std::string exact_bytes(std::uint64_t bytes);
[[nodiscard]] std::string exact_rate(double bytes_per_s);
[[nodiscard]] std::string exact_endurance(double bytes);

}  // namespace headrace
