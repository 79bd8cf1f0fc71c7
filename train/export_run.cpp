#include "train/export_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/files.hpp"
#include "model/huggingface.hpp"
#include "model/spec.hpp"
#include "tiers/memory.hpp"
#include "train/interrupt.hpp"
#include "train/run_dir.hpp"
#include "train/weights.hpp"

namespace headrace::train {
namespace {

// The run's own files have names that an export has too, and a store is nobody else's place.
Status check_apart(const ExportRequest& request) {
  const std::string target = real_path(request.target_dir);
  const auto refused = [&](const std::string& why) {
    return usage_error(fmt::format("'{}' cannot take the export", request.target_dir))
        .with_why(why)
        .with_hint("name another folder, as in runs/demo-weights");
  };
  if (target == real_path(request.run_dir)) {
    return refused("it is the run's own folder");
  }
  const RunPaths paths{.dir = absolute_path(working_directory(), request.run_dir)};
  HEADRACE_ASSIGN(const std::optional<StoreReference> store, read_store_reference(paths));
  for (const std::string& folder : store ? store->folders : std::vector<std::string>()) {
    const std::string real = real_path(folder);
    if (target == real || target.starts_with(real + "/")) {
      return refused(fmt::format("the run's store is in '{}'", folder));
    }
  }
  return {};
}

}  // namespace

Result<Exported> export_run(const ExportRequest& request) {
  if (!is_run_directory(request.run_dir)) {
    return usage_error(fmt::format("'{}' is not the directory of a run", request.run_dir))
        .with_why(is_directory(request.run_dir) ? "there is no store.json in it"
                                                : "there is no such directory")
        .with_hint("name the run.dir of a run that was trained");
  }
  HEADRACE_TRY(check_apart(request));
  HEADRACE_TRY(model::check_export_target(
      request.target_dir,
      request.overwrite ? model::ExportOver::kAnything : model::ExportOver::kExport));
  HEADRACE_ASSIGN(const std::unique_ptr<Weights> weights, open_weights(request.run_dir, {}));
  const model::Architecture& architecture = weights->architecture();
  // Any batch gives the same tensors.
  HEADRACE_ASSIGN(const plan::ModelSpec spec,
                  model::make_model_spec(
                      architecture,
                      {.micro_batch = 1, .seq_len = 1, .accumulate = 1, .compute_threads = 1},
                      {}));
  HEADRACE_ASSIGN(const std::unique_ptr<tiers::Arena> arena,
                  tiers::Arena::create(tiers::Tier::kHost, "export", kExportBufferBytes));
  model::HuggingFaceExport target;
  target.dir = request.target_dir;
  target.dtype = request.dtype;
  target.buffer =
      std::span(reinterpret_cast<float*>(arena->data()), kExportBufferBytes / sizeof(float));
  target.read = [&](int unit, std::int64_t begin, std::span<float> out) -> Status {
    if (interrupt_requested()) {
      return make_error(ExitCode::kInterrupted, "interrupted")
          .with_why("SIGINT or SIGTERM came before the end; nothing was written");
    }
    return weights->read(spec, unit, begin, out);
  };
  MadeFolders made;
  if (is_directory(parent_path(absolute_path(working_directory(), request.target_dir)))) {
    HEADRACE_ASSIGN(made, MadeFolders::make(request.target_dir));
  }
  HEADRACE_TRY(model::export_huggingface(architecture, spec, target));
  made.keep();
  Exported exported;
  exported.source = weights->description();
  exported.target_dir = request.target_dir;
  exported.dtype = request.dtype;
  exported.parameters = spec.parameters();
  HEADRACE_ASSIGN(const std::vector<std::string> files,
                  model::weight_file_names(request.target_dir));
  for (const std::string& file : files) {
    HEADRACE_ASSIGN(const std::uint64_t bytes,
                    file_size_bytes(fmt::format("{}/{}", request.target_dir, file)));
    exported.bytes += bytes;
  }
  return exported;
}

}  // namespace headrace::train
