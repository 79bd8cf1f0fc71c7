// Where host memory is put: chosen on machines given as hwloc's XML, bound on this one.
#include "tiers/numa.hpp"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "tiers/memory.hpp"
#include "tiers/test_topology.hpp"

namespace headrace::tiers {
namespace {

using Numbers = std::vector<unsigned>;

constexpr const char* kGpu = "0000:3B:00.0";

NumaChoice choose(const std::string& xml, const std::string& pci_id, const Numbers& cores) {
  const auto topology = NumaTopology::from_xml(xml);
  EXPECT_TRUE(topology.has_value());
  return topology.has_value() ? topology->choose(pci_id, cores) : NumaChoice{};
}

TEST(NumaTopology, TheNodeOfTheDeviceIsChosenWhateverTheCores) {
  for (const Numbers& cores : {Numbers{0, 1}, Numbers{2}, Numbers{0, 1, 2, 3}}) {
    const NumaChoice choice = choose(two_nodes_xml({.gpu = GpuPlace::kNode1}), kGpu, cores);
    EXPECT_EQ(choice.nodes, Numbers{1});
    EXPECT_TRUE(choice.is_near);
    EXPECT_EQ(choice.text, "NUMA node 1, near 0000:3B:00.0");
    EXPECT_EQ(choose(two_nodes_xml({.gpu = GpuPlace::kNode0}), kGpu, cores).nodes, Numbers{0});
  }
}

TEST(NumaTopology, WithoutADeviceItIsTheNodesOfTheCores) {
  const std::string xml = two_nodes_xml({.gpu = GpuPlace::kNode1});
  EXPECT_EQ(choose(xml, "", {0, 1}).nodes, Numbers{0});
  EXPECT_EQ(choose(xml, "", {3}).nodes, Numbers{1});
  const NumaChoice both = choose(xml, "", {1, 2});
  EXPECT_EQ(both.nodes, (Numbers{0, 1}));
  EXPECT_EQ(both.text, "NUMA nodes 0,1, of the process's cores");
}

// Unknown, or known and hung on the whole machine (as a virtual machine shows it).
TEST(NumaTopology, ADeviceWithoutANodeLeavesTheNodesOfTheCores) {
  const NumaChoice unknown =
      choose(two_nodes_xml({.gpu = GpuPlace::kNode1}), "FFFF:00:00.0", {0, 1});
  EXPECT_EQ(unknown.nodes, Numbers{0});
  EXPECT_FALSE(unknown.is_near);
  EXPECT_NE(unknown.text.find("not near FFFF:00:00.0: the system has no such device"),
            std::string::npos)
      << unknown.text;
  const NumaChoice anywhere = choose(two_nodes_xml({.gpu = GpuPlace::kMachine}), kGpu, {2, 3});
  EXPECT_EQ(anywhere.nodes, Numbers{1});
  EXPECT_FALSE(anywhere.is_near);
  EXPECT_NE(anywhere.text.find("does not say to which node"), std::string::npos) << anywhere.text;
  EXPECT_FALSE(choose(two_nodes_xml({.gpu = GpuPlace::kNode1}), "no id", {0}).is_near);
}

TEST(NumaTopology, ANodeThatTheProcessMayNotUseIsNotChosen) {
  const std::string disallowed =
      two_nodes_xml({.gpu = GpuPlace::kNode1, .allowed_nodes = "0x00000001"});
  const NumaChoice choice = choose(disallowed, kGpu, {0, 1});
  EXPECT_EQ(choice.nodes, Numbers{0});
  EXPECT_FALSE(choice.is_near);
  EXPECT_NE(choice.text.find("may not take memory of its NUMA node 1"), std::string::npos)
      << choice.text;
  EXPECT_EQ(choose(disallowed, kGpu, {2, 3}).nodes, Numbers{0})
      << "cores of the node without its memory";
}

TEST(NumaTopology, OnOneNodeThereIsNothingToBind) {
  std::string xml = two_nodes_xml({.gpu = GpuPlace::kNode0, .allowed_nodes = "0x00000001"});
  const std::size_t second = xml.find(R"(<object type="Package" os_index="1")");
  xml.erase(second, xml.rfind("</object>\n</topology>") - second);
  for (int i = 0; i < 3; ++i) {
    replace_once(xml, "0x0000000f", "0x00000003");
  }
  replace_once(xml, R"( nodeset="0x00000003")", R"( nodeset="0x00000001")");
  replace_once(xml, R"(complete_nodeset="0x00000003")", R"(complete_nodeset="0x00000001")");
  const NumaChoice choice = choose(xml, kGpu, {0, 1});
  EXPECT_TRUE(choice.nodes.empty());
  EXPECT_TRUE(choice.text.empty());
}

using Groups = std::vector<Numbers>;

Groups by_node(const std::string& description, const Numbers& cores) {
  const auto topology = NumaTopology::from_synthetic(description);
  EXPECT_TRUE(topology.has_value()) << description;
  return topology.has_value() ? topology->by_node(cores) : Groups{};
}

TEST(NumaTopology, CoresAreThoseOfTheirNode) {
  const Numbers all = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(by_node("numa:1 core:8 pu:1", all), Groups{all});
  EXPECT_EQ(by_node("numa:2 core:4 pu:1", all), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(by_node("pack:2 [numa] core:2 pu:2", all), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(by_node("pack:2 numa:2 core:2 pu:1", all), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  // Threads of a core are far apart by number, as most machines have them.
  EXPECT_EQ(by_node("numa:2 core:2 pu:2(indexes=0,4,1,5,2,6,3,7)", all),
            (Groups{{0, 1, 4, 5}, {2, 3, 6, 7}}));
}

TEST(NumaTopology, CoresThatTheProcessMayNotUseAreNobodys) {
  EXPECT_EQ(by_node("numa:2 core:4 pu:1", {0, 5, 6}), (Groups{{0}, {5, 6}}));
  EXPECT_EQ(by_node("numa:4 core:2 pu:1", {2, 3}), (Groups{{2, 3}}));
  EXPECT_TRUE(by_node("numa:2 core:4 pu:1", {}).empty());
  EXPECT_EQ(by_node("numa:2 core:1 pu:1", {1, 9}), (Groups{{1}, {9}})) << "of no node at all";
}

// A node without memory has cores all the same; one of memory alone, or of memory beside that of
// others, has none of its own.
TEST(NumaTopology, CoresOfNodesThatAreUnlikeOthers) {
  EXPECT_EQ(by_node("pack:2 [numa(memory=0)] core:2 pu:1", {0, 1, 2, 3}), (Groups{{0, 1}, {2, 3}}));
  EXPECT_EQ(by_node("[numa(memory=1GB)] pack:2 [numa] core:2 pu:1", {0, 1, 2, 3}),
            (Groups{{0, 1}, {2, 3}}));
  EXPECT_EQ(by_node("pack:2 [numa] [numa(memory=4GB)] core:2 pu:1", {0, 1, 2, 3}),
            (Groups{{0, 1}, {2, 3}}));
}

// The process that the tests run in: whatever the machine, all of its cores, each once.
TEST(Numa, CoresByNodeAreTheProcesss) {
  Numbers cores;
  for (const Numbers& group : cores_by_node()) {
    EXPECT_FALSE(group.empty());
    cores.insert(cores.end(), group.begin(), group.end());
  }
  std::sort(cores.begin(), cores.end());
  const auto machine = NumaTopology::load(false);
  ASSERT_TRUE(machine.has_value());
  EXPECT_EQ(cores, machine->process_cores());
}

TEST(NumaTopology, WhatIsNoTopologyIsRefused) {
  EXPECT_FALSE(NumaTopology::from_synthetic("numa:two").has_value());
  EXPECT_FALSE(NumaTopology::from_xml("<topology").has_value());
}

// The policy of a page, as the kernel has it.
struct Policy {
  int mode = -1;
  std::uint64_t nodes = 0;
};

Policy policy_at(void* address) {
  constexpr unsigned long kOfAddress = 2;  // MPOL_F_ADDR
  constexpr std::size_t kWordBits = 64;
  Policy policy;
  std::array<std::uint64_t, 16> nodes = {};
  if (::syscall(SYS_get_mempolicy,
                &policy.mode,
                nodes.data(),
                nodes.size() * kWordBits,
                address,
                kOfAddress) == 0) {
    policy.nodes = nodes[0];
  }
  return policy;
}

// Exits with 0 if an arena prefers the GPU's node, in the words of the kernel.
[[noreturn]] void make_an_arena_near_the_gpu() {
  constexpr int kPreferred = 1;      // MPOL_PREFERRED
  constexpr int kPreferredMany = 5;  // MPOL_PREFERRED_MANY, Linux 5.15
  pretend_to_be({});
  const auto arena = Arena::create(Tier::kHost, "near", 1 << 16, kGpu);
  const ArenaStats stats = (*arena)->stats();
  const Policy policy = policy_at((*arena)->data());
  const bool is_preference = policy.mode == kPreferred || policy.mode == kPreferredMany;
  std::cerr << "bound " << stats.numa_bound << ", near " << stats.numa_near << ", mode "
            << policy.mode << ", nodes " << policy.nodes << "\n";
  const bool is_good = stats.numa_bound && stats.numa_near && is_preference && policy.nodes == 1;
  std::exit(is_good ? 0 : 1);
}

TEST(NumaTopologyDeathTest, AnArenaPrefersTheNodeOfItsDeviceAndIsNotForcedThere) {
  if (!can_bind_memory()) {
    GTEST_SKIP() << "this system lets nobody bind memory";
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(make_an_arena_near_the_gpu(), testing::ExitedWithCode(0), "bound 1, near 1");
}

TEST(Numa, AnArenaNearAnUnknownDeviceIsMadeAllTheSame) {
  const auto arena = Arena::create(Tier::kHost, "somewhere", 4096, "FFFF:00:00.0");
  ASSERT_TRUE(arena.has_value());
  EXPECT_EQ((*arena)->data()[4095], std::byte{0});
  EXPECT_FALSE((*arena)->stats().numa_near);
}

}  // namespace
}  // namespace headrace::tiers
