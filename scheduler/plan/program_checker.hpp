// Runs programs of a plan on contents instead of numbers: every byte of every tier holds the name
// of what lies there (weights of a tile after so many updates, a gradient of so many micro-batches,
// ...), and every instruction finds what it needs or the check fails. Test-only; knows nothing of
// how programs are built. By file: program_checker runs programs, program_checker_instructions
// checks each instruction, program_checker_memory looks contents up.
//
// Instructions go in a random one of the orders that queues and waits allow. Addresses are those of
// the tiers, so that buffers may share memory. What one program leaves, the next one finds.
// Threads: none. Failure: the first thing that is wrong, as a sentence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/plan/model_spec.hpp"
#include "scheduler/plan/plan.hpp"
#include "scheduler/plan/program.hpp"

namespace headrace::plan {

// What some bytes hold.
struct Content {
  enum class Kind : std::uint8_t {
    kNothing,
    kScratch,
    kFloats,  // weights of a tile
    kParam,   // its param extent, where that has to be decoded
    kState,
    kTargets,
    kTokens,      // the embedding's output, of `count` of its tiles
    kActivation,  // input of a block, of a micro-batch
    kSaved,       // activations of a block
    kHead,        // state of the head, with `count` row pieces scored
    kLoss,
    kActivationGradient,  // of the input of a block; of the head, `count` row pieces of it
    kRows,                // row sums of the embedding, of `count` micro-batches
    kGradient,            // of a tile, micro-batches [from, from + count)
    kSpread,              // of a tile of the embedding, with row sums
    kHeldGradient,        // ready for the update
    kLogits,
  };
  Kind kind = Kind::kNothing;
  int unit = 0, tile = 0;     // or block, micro-batch
  int version = 0;            // updates of a weight; else the step
  int from = 0, count = 0;    // see kind
  std::uint64_t content = 0;  // of a lease (Access::content)

  friend bool operator==(const Content&, const Content&) = default;
};

[[nodiscard]] std::string text(const Content& content);  // for messages

class ProgramChecker {
 public:
  // After load: weights and state of no update, where the plan keeps them. Everything outlives it.
  ProgramChecker(const ModelSpec& model, const Plan& plan, std::mt19937_64& random);

  // Each returns "" or what is wrong; then it must not be used any more.
  // The training step's forward and backward, with the update that is pending if that is held.
  // `speculates`: and with its own; settle() comes next.
  [[nodiscard]] std::string compute(bool speculates = false);
  void settle(bool keep);             // what was speculated counts, or never was
  [[nodiscard]] std::string drain();  // the pending update
  [[nodiscard]] std::string evaluate();

  void skip() { pending_ = false; }  // what compute made is not used

  [[nodiscard]] bool pending() const { return pending_; }

  // Of which a part has been made: the next step speculates, too.
  [[nodiscard]] bool rest_pending() const { return pending_ && rest_only_; }

 private:
  static constexpr std::size_t kFloatBytes = 4;

  struct Segment {
    std::size_t end = 0;
    Content content;
  };

  using Memory = std::map<std::size_t, Segment>;  // by begin; gaps hold nothing

  struct Place {
    int space = 0;  // a tier's arena, or a store buffer
    std::size_t begin = 0, end = 0;
  };

  [[nodiscard]] std::string run(const Program& program);
  [[nodiscard]] std::string execute(const Instruction& instruction);
  void dispatch(const Instruction& instruction);
  // By kind of instruction.
  void transfer(const Instruction& instruction);
  void move_saved(const Instruction& instruction);
  void copy(const Instruction& instruction);
  void gather(const Instruction& instruction);
  void forward(const Instruction& instruction);
  void backward(const Instruction& instruction);
  void head_begin(const Instruction& instruction);
  void head_score(const Instruction& instruction);
  void head_loss(const Instruction& instruction);
  void head_gradient(const Instruction& instruction);
  void head_end(const Instruction& instruction);
  void head_logits(const Instruction& instruction);
  void scatter(const Instruction& instruction);
  void spread(const Instruction& instruction);
  void accumulate(const Instruction& instruction);
  void collect(const Instruction& instruction);
  void update(const Instruction& instruction);
  void decode(const Instruction& instruction);

  void expect_weights(int unit, int piece, const Access& access);
  void add_gradient(int unit, int piece, const Instruction& instruction, const Access& access);
  void expect_input(int block, int micro_batch, const Access& access);
  void expect_gradients_held();
  void expect_losses();
  void expect_home(bool after_drain);
  [[nodiscard]] const Program& compute_program(bool speculates) const;

  [[nodiscard]] Place place(const Access& access) const;
  [[nodiscard]] Place place(int buffer, std::size_t offset, std::size_t bytes) const;

  [[nodiscard]] static bool present(const Access& access) {
    return access.buffer >= 0 && access.bytes > 0;
  }

  void set(const Place& place, const Content& content);
  void expect(const Place& place, const Content& content, const char* what);
  // Where all of it holds the same.
  [[nodiscard]] Content look(const Place& place, const char* what);
  void fail(const std::string& what);

  [[nodiscard]] const TileSpec& tile(int unit, int number) const;
  [[nodiscard]] Content floats(int unit, int tile, int version) const;
  [[nodiscard]] Content param(int unit, int tile, int version) const;
  [[nodiscard]] Content state(int unit, int tile, int version) const;
  // What kernels must see: the updates that have been decided on, if this program makes them.
  [[nodiscard]] int version(int unit, int number) const;

  const ModelSpec& model_;
  const Plan& plan_;
  std::mt19937_64& random_;
  std::map<int, Memory> spaces_;
  std::vector<std::vector<int>> updates_;  // [unit][tile], in this program or before
  int updates_wanted_ = 0;                 // of every trainable tile, before it is used
  int step_ = 0;
  bool pending_ = false;
  bool speculating_ = false;
  bool rest_only_ = false;                           // of the pending update
  std::vector<std::pair<Place, Content>> replaced_;  // of the store, by what was speculated
  int pending_step_ = 0;                             // which made the gradients
  std::string error_;
};

}  // namespace headrace::plan
