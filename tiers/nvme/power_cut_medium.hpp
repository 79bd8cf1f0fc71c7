// Files in memory whose power is cut after the n-th operation: what a store must live with.
//
// Invariant: a page that was synced stays; of the writes to a page since then any one may be what
// the disk has after the cut, or none, or a mixture of two at a sector's border; all of it follows
// from the seed. Thread: one. Failure: after the cut every call is an Error.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tiers/nvme/block_file.hpp"
#include "tiers/nvme/store.hpp"

namespace headrace::tiers::nvme::testing {

class PowerCutMedium {
 public:
  using Page = std::array<std::byte, kPageBytes>;

  struct Content {
    std::string path;
    std::uint64_t bytes = 0;
    std::map<std::uint64_t, Page> durable;                 // by page number
    std::map<std::uint64_t, std::vector<Page>> unflushed;  // writes since the last sync, in order
  };

  PowerCutMedium(std::size_t file_count, std::uint64_t seed) : random_(seed) {
    for (std::size_t i = 0; i < file_count; ++i) {
      contents_.push_back(std::make_shared<Content>());
      contents_.back()->path = "disk" + std::to_string(i);
    }
  }

  // Writes and syncs from now on until the power goes; never, if there is no number.
  void cut_after(std::optional<std::uint64_t> operations) {
    left_ = operations;
    dead_ = false;
  }

  [[nodiscard]] bool dead() const { return dead_; }

  [[nodiscard]] std::uint64_t operations() const { return operations_; }

  // What the disks have once the power is back.
  void restart() {
    for (const auto& content : contents_) {
      for (auto& [number, writes] : content->unflushed) {
        settle(*content, number, writes);
      }
      content->unflushed.clear();
    }
    cut_after(std::nullopt);
  }

  [[nodiscard]] std::vector<std::unique_ptr<BlockFile>> files() {
    std::vector<std::unique_ptr<BlockFile>> files;
    files.reserve(contents_.size());
    for (const auto& content : contents_) {
      files.push_back(std::make_unique<File>(*this, content));
    }
    return files;
  }

  // For tests that put an older state of one disk back, or swap two.
  [[nodiscard]] Content& content(std::size_t index) { return *contents_[index]; }

 private:
  static constexpr std::size_t kSectorBytes = 512;

  class File final : public BlockFile {
   public:
    File(PowerCutMedium& medium, std::shared_ptr<Content> content)
        : medium_(medium), content_(std::move(content)) {}

    [[nodiscard]] Status read(std::uint64_t offset, std::span<std::byte> target) override {
      if (medium_.dead_) {
        return medium_.no_power();
      }
      if (offset + target.size() > content_->bytes) {
        return corrupt_error("'" + content_->path + "' ends before that");
      }
      for (std::size_t at = 0; at < target.size(); at += kPageBytes) {
        const Page page = medium_.current(*content_, (offset + at) / kPageBytes);
        std::memcpy(target.data() + at, page.data(), kPageBytes);
      }
      return {};
    }

    // The power may go at any page of a write.
    [[nodiscard]] Status write(std::uint64_t offset, std::span<const std::byte> source) override {
      for (std::size_t at = 0; at < source.size(); at += kPageBytes) {
        if ((at == 0 || medium_.cut_within_writes) && !medium_.step()) {
          return medium_.no_power();
        }
        Page page;
        std::memcpy(page.data(), source.data() + at, kPageBytes);
        content_->unflushed[(offset + at) / kPageBytes].push_back(page);
        content_->bytes = std::max(content_->bytes, offset + at + kPageBytes);
      }
      return {};
    }

    [[nodiscard]] Status sync() override {
      if (!medium_.step()) {
        return medium_.no_power();
      }
      for (auto& [number, writes] : content_->unflushed) {
        content_->durable[number] = writes.back();
      }
      content_->unflushed.clear();
      return {};
    }

    [[nodiscard]] Status allocate(std::uint64_t bytes) override {
      if (!medium_.step()) {
        return medium_.no_power();
      }
      content_->bytes = std::max(content_->bytes, bytes);
      return {};
    }

    [[nodiscard]] Status cut(std::uint64_t bytes) override {
      if (!medium_.step()) {
        return medium_.no_power();
      }
      content_->bytes = std::min(content_->bytes, bytes);
      return {};
    }

    [[nodiscard]] Result<std::uint64_t> bytes() override { return content_->bytes; }

    [[nodiscard]] const std::string& path() const override { return content_->path; }

    [[nodiscard]] int fd() const override { return -1; }

    [[nodiscard]] bool direct_io() const override { return false; }

   private:
    PowerCutMedium& medium_;
    std::shared_ptr<Content> content_;
  };

  static Error no_power() { return operating_error("no power"); }

  // One more operation; false: the power is gone.
  bool step() {
    dead_ = dead_ || left_ == 0;
    if (dead_) {
      return false;
    }
    ++operations_;
    if (left_) {
      --*left_;
    }
    return true;
  }

  static Page durable_page(const Content& content, std::uint64_t number) {
    const auto place = content.durable.find(number);
    return place == content.durable.end() ? Page{} : place->second;
  }

  static Page current(const Content& content, std::uint64_t number) {
    const auto place = content.unflushed.find(number);
    return place == content.unflushed.end() ? durable_page(content, number) : place->second.back();
  }

  void settle(Content& content, std::uint64_t number, const std::vector<Page>& writes) {
    const std::size_t kept = random_() % (writes.size() + 1);
    if (kept == 0) {
      return;
    }
    Page page = writes[kept - 1];
    if (random_() % 4 == 0) {
      const Page before = kept == 1 ? durable_page(content, number) : writes[kept - 2];
      const std::size_t torn = random_() % (kPageBytes / kSectorBytes) * kSectorBytes;
      std::copy(before.begin() + static_cast<std::ptrdiff_t>(torn),
                before.end(),
                page.begin() + static_cast<std::ptrdiff_t>(torn));
    }
    content.durable[number] = page;
  }

 public:
  bool cut_within_writes = false;

 private:
  std::vector<std::shared_ptr<Content>> contents_;
  std::mt19937_64 random_;
  std::optional<std::uint64_t> left_;
  std::uint64_t operations_ = 0;
  bool dead_ = false;
};

}  // namespace headrace::tiers::nvme::testing
