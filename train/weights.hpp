// The weights of a model on disk, wherever they are: a Hugging Face directory or the commit of a
// run.
//
// Invariant: elements are found by tensor name, so the layout of the one who asks (other frozen
// tensors, other tiles) need not be the one of the store. Thread: one at a time. Failure: Result.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "model/architecture.hpp"
#include "scheduler/plan/model_spec.hpp"
#include "tiers/nvme/store.hpp"

namespace headrace::train {

class Weights {
 public:
  virtual ~Weights() = default;
  [[nodiscard]] virtual const model::Architecture& architecture() const = 0;
  // "the commit of step 200 of 'runs/demo'"
  [[nodiscard]] virtual std::string description() const = 0;
  // Elements [begin, begin + out.size()) of a unit of `spec`, made for this architecture; padding
  // is 0. Ascending requests read each tile of a store once.
  [[nodiscard]] virtual Status read(const plan::ModelSpec& spec,
                                    int unit,
                                    std::int64_t begin,
                                    std::span<float> out) = 0;
};

// What turns text into the model's tokens: what the model says, or "bytes" where it says nothing
// and has 256 of them; "": only token files will do.
[[nodiscard]] std::string tokenizer_of(const model::Architecture& architecture);

// What turns text into the tokens of the model in a directory: its tokenizer.json, else as above.
[[nodiscard]] std::string tokenizer_of_directory(const std::string& dir,
                                                 const model::Architecture& architecture);

// `ignore` is model.ignore. Errors: neither kind of directory; no commit; a bad model.
[[nodiscard]] Result<std::unique_ptr<Weights>> open_weights(const std::string& dir,
                                                            const std::vector<std::string>& ignore);

// Those of the last commit of a store that is being written to: the slots that the commit names are
// read. `store` outlives the result; while it is read, on whatever thread, no commit may be made.
[[nodiscard]] Result<std::unique_ptr<Weights>> weights_of_commit(const tiers::nvme::Store& store,
                                                                 const std::string& run_dir);

}  // namespace headrace::train
