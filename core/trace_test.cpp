// A trace is valid JSON in Chrome's form, bounded, and says what it dropped.
#include "core/trace.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/files.hpp"
#include "core/json.hpp"
#include "core/test_folder.hpp"

namespace headrace {
namespace {

Json written_trace(const TraceRecorder& recorder) {
  const TestFolder folder;
  const std::string path = folder.path("trace.json");
  EXPECT_TRUE(recorder.write(path));
  return parse_json(read_file(path, 1U << 24U).value()).value();
}

TEST(Trace, SpansAreChromeEventsRelativeToTheFirst) {
  TraceRecorder recorder(8);
  const TraceTrack compute = recorder.add_track("compute \"0\"");
  recorder.record({.name = "forward", .track = compute, .begin_ns = 5000, .end_ns = 7500, .id = 3});
  recorder.record({.name = "a name that is longer than what an event keeps of it",
                   .track = compute,
                   .begin_ns = 5001,
                   .end_ns = 5002});
  const Json trace = written_trace(recorder);
  const Json::Array& events = *trace.find("traceEvents")->as_array();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(*events[0].find("args")->find("name")->as_string(), "compute \"0\"");
  EXPECT_EQ(*events[1].find("ph")->as_string(), "X");
  EXPECT_EQ(events[1].find("ts")->as_double(), 0.0);
  EXPECT_EQ(events[1].find("dur")->as_double(), 2.5);
  EXPECT_EQ(events[1].find("args")->find("id")->as_int(), 3);
  EXPECT_EQ(events[2].find("ts")->as_double(), 0.001);
  EXPECT_EQ(events[2].find("name")->as_string()->size(), 31U);
  EXPECT_EQ(events[2].find("args"), nullptr);
}

TEST(Trace, WhatDoesNotFitIsCounted) {
  TraceRecorder recorder(2);
  const TraceTrack track = recorder.add_track("t");
  for (int i = 0; i < 5; ++i) {
    recorder.record({.name = "x", .track = track, .begin_ns = i, .end_ns = i + 1});
  }
  EXPECT_EQ(recorder.events_recorded(), 2U);
  EXPECT_EQ(recorder.events_dropped(), 3U);
  EXPECT_EQ(written_trace(recorder).find("otherData")->find("events_dropped")->as_int(), 3);
}

TEST(Trace, ManyThreadsRecordAtOnceAndNothingIsLost) {
  TraceRecorder recorder(4000);
  const TraceTrack track = recorder.add_track("t");
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&recorder, track, t] {
      for (int i = 0; i < 1000; ++i) {
        const TraceScope scope(&recorder, track, "span", t * 1000 + i);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const Json trace = written_trace(recorder);
  std::set<std::int64_t> ids;
  for (const Json& event : *trace.find("traceEvents")->as_array()) {
    if (*event.find("ph")->as_string() == "X") {
      ids.insert(event.find("args")->find("id")->as_int().value());
    }
  }
  EXPECT_EQ(ids.size(), 4000U);
  EXPECT_EQ(recorder.events_dropped(), 0U);
}

TEST(Trace, AnEmptyTraceIsValidAndANullRecorderRecordsNothing) {
  const TraceRecorder recorder(1);
  EXPECT_TRUE(written_trace(recorder).find("traceEvents")->as_array()->empty());
  const TraceScope scope(nullptr, {}, "nothing");
}

}  // namespace
}  // namespace headrace
