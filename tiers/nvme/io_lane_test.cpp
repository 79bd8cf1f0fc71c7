// Lanes as queues: the conformance suite that every kind of queue passes.
#include <gtest/gtest.h>

#include "tiers/nvme/io_engine.hpp"
#include "tiers/nvme/test_support.hpp"
#include "tiers/queue_conformance.hpp"

namespace headrace::tiers {
namespace {

namespace nt = nvme::testing;

// Half of the cells (two at least) are memory, the others extents of a store.
class LaneHarness final : public QueueHarness {
 public:
  LaneHarness(Runtime& runtime, const HarnessOptions& options)
      : memory_cells_(std::max<std::size_t>(2, options.cells / 2)),
        memory_(nt::pages(memory_cells_ * kCellBytes)) {
    nvme::StoreContents contents;
    for (std::size_t cell = memory_cells_; cell < options.cells; ++cell) {
      contents.tiles.push_back({.unit = 0,
                                .tile = static_cast<std::uint32_t>(cell),
                                .param_bytes = kCellBytes,
                                .state_bytes = 0});
    }
    store_ = nt::make_store(folder_.path(), contents);
    EXPECT_TRUE(store_->mark_dirty().has_value());
    engine_ = nvme::IoEngine::create(runtime,
                                     *store_,
                                     0,
                                     {.lanes = static_cast<int>(options.queues),
                                      .io_depth = 2,
                                      .lane_capacity = options.ring_capacity})
                  .value();
  }

  Queue& queue(std::size_t index) override { return engine_->lane(static_cast<int>(index)); }

  [[nodiscard]] std::size_t cell_bytes() const override { return kCellBytes; }

  std::byte* cell_memory(std::size_t cell) override {
    return cell < memory_cells_ ? memory_.bytes().data() + cell * kCellBytes : nullptr;
  }

  bool can_copy(const CellCopy& copy) override {
    return (copy.source < memory_cells_) != (copy.target < memory_cells_);
  }

  void copy(Queue& queue, const CellCopy& copy) override {
    auto& lane = dynamic_cast<nvme::IoLane&>(queue);
    if (copy.source < memory_cells_) {
      lane.write(key(copy.target), {cell_memory(copy.source), kCellBytes}, ++step_, 0);
    } else {
      lane.read(key(copy.source), {cell_memory(copy.target), kCellBytes}, 0);
    }
  }

  void fail(Queue& queue) override {
    queue.submit({.name = "fail"}, []() -> Status { return operating_error("planted failure"); });
  }

 private:
  static constexpr std::size_t kCellBytes = 2 * nvme::kPageBytes;

  static nvme::ExtentKey key(std::size_t cell) {
    return {.unit = 0, .tile = static_cast<std::uint32_t>(cell), .kind = nvme::ExtentKind::kParam};
  }

  std::size_t memory_cells_;
  nvme::PageBuffer memory_;
  nt::TestFolder folder_;
  std::unique_ptr<nvme::Store> store_;
  std::unique_ptr<nvme::IoEngine> engine_;
  std::int64_t step_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Lanes,
                         QueueConformance,
                         ::testing::Values(HarnessKind{
                             .name = "lane",
                             .make = [](Runtime& runtime, const HarnessOptions& options)
                                 -> std::unique_ptr<QueueHarness> {
                               return std::make_unique<LaneHarness>(runtime, options);
                             },
                             .random_programs = 20}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace headrace::tiers
