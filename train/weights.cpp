#include "train/weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/files.hpp"
#include "core/log.hpp"
#include "model/huggingface.hpp"
#include "model/tokenizer.hpp"
#include "optim_cpu/convert.hpp"
#include "scheduler/exec/state_format.hpp"
#include "tiers/memory.hpp"
#include "tiers/nvme/store.hpp"
#include "train/run_dir.hpp"
#include "train/run_state.hpp"
#include "train/state_format.hpp"

namespace headrace::train {
namespace {

class HuggingFaceWeights final : public Weights {
 public:
  HuggingFaceWeights(std::string dir, model::HuggingFaceModel model)
      : dir_(std::move(dir)), model_(std::move(model)) {}

  [[nodiscard]] const model::Architecture& architecture() const override {
    return model_.architecture();
  }

  [[nodiscard]] std::string description() const override { return fmt::format("'{}'", dir_); }

  [[nodiscard]] Status read(const plan::ModelSpec& spec,
                            int unit,
                            std::int64_t begin,
                            std::span<float> out) override {
    return model_.read(spec, unit, begin, out);
  }

 private:
  std::string dir_;
  model::HuggingFaceModel model_;
};

struct TensorPlace {
  std::size_t unit = 0;
  const StoredTensor* tensor = nullptr;
};

class CommittedWeights final : public Weights {
 public:
  // `owned` is `store`, or null where it belongs to someone else.
  CommittedWeights(std::string dir,
                   const tiers::nvme::Store& store,
                   std::unique_ptr<tiers::nvme::Store> owned,
                   TensorTable table,
                   plan::StateFormat format,
                   std::unique_ptr<tiers::Arena> memory)
      : dir_(std::move(dir)),
        store_(&store),
        owned_(std::move(owned)),
        table_(std::move(table)),
        format_(std::move(format)),
        memory_(std::move(memory)) {
    for (std::size_t unit = 0; unit < table_.units.size(); ++unit) {
      for (const StoredTensor& tensor : table_.units[unit].tensors) {
        places_[tensor.name] = {.unit = unit, .tensor = &tensor};
      }
    }
  }

  [[nodiscard]] const model::Architecture& architecture() const override {
    return table_.architecture;
  }

  [[nodiscard]] std::string description() const override {
    return fmt::format("the commit of step {} of '{}'", store_->last_commit()->step, dir_);
  }

  [[nodiscard]] Status read(const plan::ModelSpec& spec,
                            int unit,
                            std::int64_t begin,
                            std::span<float> out) override {
    std::fill(out.begin(), out.end(), 0.0F);
    const auto end = begin + static_cast<std::int64_t>(out.size());
    for (const plan::TensorSpec& tensor : spec.units[static_cast<std::size_t>(unit)].tensors) {
      const std::int64_t first = std::max(begin, tensor.offset);
      const std::int64_t last = std::min(end, tensor.offset + tensor.elements);
      if (first < last) {
        HEADRACE_TRY(read_tensor(tensor,
                                 first - tensor.offset,
                                 out.subspan(static_cast<std::size_t>(first - begin),
                                             static_cast<std::size_t>(last - first))));
      }
    }
    return {};
  }

 private:
  Status read_tensor(const plan::TensorSpec& wanted, std::int64_t first, std::span<float> out) {
    const auto found = places_.find(wanted.name);
    if (found == places_.end() || found->second.tensor->shape != wanted.shape) {
      return corrupt_error(fmt::format("the store '{}' has no tensor '{}' of that shape",
                                       store_->path(),
                                       wanted.name))
          .with_hint("it was written by another version of headrace");
    }
    const auto& [unit, tensor] = found->second;
    std::int64_t at = tensor->offset + first;
    for (std::size_t done = 0; done < out.size();) {
      HEADRACE_TRY(fetch(unit, at));
      const plan::TileSpec& tile = table_.units[unit].tiles[cached_->second];
      const std::int64_t within = at - tile.begin;
      const std::size_t count =
          std::min(out.size() - done, static_cast<std::size_t>(tile.elements - within));
      std::memcpy(out.data() + done, floats_ + within, count * sizeof(float));
      done += count;
      at += static_cast<std::int64_t>(count);
    }
    return {};
  }

  // Brings the tile that holds the unit's element `at` to floats_.
  Status fetch(std::size_t unit, std::int64_t at) {
    const std::vector<plan::TileSpec>& tiles = table_.units[unit].tiles;
    const auto after = std::upper_bound(
        tiles.begin(), tiles.end(), at, [](std::int64_t value, const plan::TileSpec& tile) {
          return value < tile.begin + tile.elements;
        });
    if (after == tiles.end()) {
      return corrupt_error(
                 fmt::format("the tiles of the store '{}' end before its tensors", store_->path()))
          .with_hint("restore the store from a copy");
    }
    const std::pair wanted(unit, static_cast<std::size_t>(after - tiles.begin()));
    // Another commit of a store that is being written to has other bytes in the same tile.
    const std::uint64_t generation = store_->last_commit()->generation;
    if (cached_ == wanted && cached_generation_ == generation) {
      return {};
    }
    cached_.reset();
    HEADRACE_TRY(read_tile(wanted, *after));
    cached_ = wanted;
    cached_generation_ = generation;
    return {};
  }

  // Its extents lie behind the header, all of them targets of direct I/O; behind them what had to
  // be decoded.
  Status read_tile(std::pair<std::size_t, std::size_t> number, const plan::TileSpec& tile) {
    std::byte* at = memory_->data() + store_->header_bytes_max();
    const auto read = [&](tiers::nvme::ExtentKind kind, std::size_t bytes) {
      return store_->read_committed({.unit = static_cast<std::uint32_t>(number.first),
                                     .tile = static_cast<std::uint32_t>(number.second),
                                     .kind = kind},
                                    {std::exchange(at, at + bytes), bytes},
                                    {memory_->data(), store_->header_bytes_max()});
    };
    optim::TileMemory extents{.param = at, .state = nullptr, .tile_elements = tile.elements};
    HEADRACE_TRY(read(tiers::nvme::ExtentKind::kParam, format_.param_extent_bytes(tile)));
    if (!format_.decodes(tile)) {
      floats_ = reinterpret_cast<const float*>(extents.param);
      return {};
    }
    extents.state = at;
    HEADRACE_TRY(read(tiers::nvme::ExtentKind::kState, format_.state_extent_bytes(tile)));
    const std::span decoded(reinterpret_cast<float*>(at), static_cast<std::size_t>(tile.elements));
    optim::read_state(
        exec::optimizer_of(format_), extents, 0, {.param = decoded, .m = {}, .v = {}});
    floats_ = decoded.data();
    return {};
  }

  std::string dir_;

  const tiers::nvme::Store* store_;
  std::unique_ptr<tiers::nvme::Store> owned_;
  TensorTable table_;
  plan::StateFormat format_;
  std::unique_ptr<tiers::Arena> memory_;  // of the largest header and the largest tile
  const float* floats_ = nullptr;         // of the tile that is cached, in memory_
  std::unordered_map<std::string, TensorPlace> places_;
  std::optional<std::pair<std::size_t, std::size_t>> cached_;  // unit and tile at floats_
  std::uint64_t cached_generation_ = 0;
};

Result<std::unique_ptr<Weights>> make_committed(std::string dir,
                                                const tiers::nvme::Store& store,
                                                std::unique_ptr<tiers::nvme::Store> owned) {
  HEADRACE_ASSIGN(TensorTable table,
                  tensor_table_from_text(store.contents().tensor_table, store.path()));
  HEADRACE_ASSIGN(plan::StateFormat format, format_of(store));
  HEADRACE_TRY(check_tiles(store, table, format));
  std::uint64_t tile_bytes = 0;
  for (const StoredUnit& unit : table.units) {
    for (const plan::TileSpec& tile : unit.tiles) {
      tile_bytes = std::max<std::uint64_t>(tile_bytes, committed_tile_bytes(format, tile));
    }
  }
  HEADRACE_ASSIGN(
      std::unique_ptr<tiers::Arena> memory,
      tiers::Arena::create(tiers::Tier::kHost, "committed", store.header_bytes_max() + tile_bytes));
  return std::unique_ptr<Weights>(std::make_unique<CommittedWeights>(std::move(dir),
                                                                     store,
                                                                     std::move(owned),
                                                                     std::move(table),
                                                                     std::move(format),
                                                                     std::move(memory)));
}

Result<std::unique_ptr<Weights>> open_committed(const std::string& dir) {
  const RunPaths paths{.dir = absolute_path(working_directory(), dir)};
  HEADRACE_ASSIGN(std::unique_ptr<tiers::nvme::Store> store, open_committed_store(paths));
  const tiers::nvme::Store& opened = *store;
  return make_committed(dir, opened, std::move(store));
}

}  // namespace

std::string tokenizer_of(const model::Architecture& architecture) {
  if (architecture.tokenizer.empty() && architecture.vocab == model::kByteVocab) {
    return "bytes";
  }
  return architecture.tokenizer;
}

std::string tokenizer_of_directory(const std::string& dir,
                                   const model::Architecture& architecture) {
  std::string file = model::tokenizer_file_in(dir);
  return file.empty() ? tokenizer_of(architecture) : file;
}

Result<std::unique_ptr<Weights>> weights_of_commit(const tiers::nvme::Store& store,
                                                   const std::string& run_dir) {
  return make_committed(run_dir, store, nullptr);
}

Result<std::unique_ptr<Weights>> open_weights(const std::string& dir,
                                              const std::vector<std::string>& ignore) {
  if (is_run_directory(dir)) {
    return open_committed(dir);
  }
  if (!path_exists(dir + "/config.json")) {
    return usage_error(fmt::format("'{}' holds no model", dir))
        .with_why(is_directory(dir) ? "there is neither a config.json nor a store.json in it"
                                    : "there is no such directory")
        .with_hint(
            "name a Hugging Face directory or the directory of a run; a new model is made "
            "from model.preset or model.arch");
  }
  HEADRACE_ASSIGN(model::HuggingFaceModel model, model::open_huggingface(dir, ignore));
  for (const std::string& note : model.notes()) {
    log_info(note);
  }
  return std::unique_ptr<Weights>(std::make_unique<HuggingFaceWeights>(dir, std::move(model)));
}

}  // namespace headrace::train
