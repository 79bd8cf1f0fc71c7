// A machine of two NUMA nodes and a GPU for tests, as hwloc's XML: each node a package of two
// cores.
//
// Threads: the test's. Failure: a process that cannot pretend to be it ends.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "core/assert.hpp"

namespace headrace::tiers {

enum class GpuPlace { kNode0, kNode1, kMachine };

struct TwoNodeMachine {
  GpuPlace gpu = GpuPlace::kNode0;
  std::string pci_id = "0000:3B:00.0";
  std::string allowed_nodes = "0x00000003";  // a mask
};

// As lstopo writes it.
inline constexpr const char* kTwoNodesXml = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f" complete_cpuset="0x0000000f"
      allowed_cpuset="0x0000000f" nodeset="0x00000003" complete_nodeset="0x00000003"
      allowed_nodeset="@ALLOWED@" gp_index="1">
    <object type="Package" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003"
        nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="2">
      <object type="NUMANode" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003"
          nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="3"
          local_memory="1073741824"/>
      <object type="PU" os_index="0" cpuset="0x00000001" complete_cpuset="0x00000001"
          nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="4"/>
      <object type="PU" os_index="1" cpuset="0x00000002" complete_cpuset="0x00000002"
          nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="5"/>
      @AT_NODE_0@
    </object>
    <object type="Package" os_index="1" cpuset="0x0000000c" complete_cpuset="0x0000000c"
        nodeset="0x00000002" complete_nodeset="0x00000002" gp_index="6">
      <object type="NUMANode" os_index="1" cpuset="0x0000000c" complete_cpuset="0x0000000c"
          nodeset="0x00000002" complete_nodeset="0x00000002" gp_index="7"
          local_memory="1073741824"/>
      <object type="PU" os_index="2" cpuset="0x00000004" complete_cpuset="0x00000004"
          nodeset="0x00000002" complete_nodeset="0x00000002" gp_index="8"/>
      <object type="PU" os_index="3" cpuset="0x00000008" complete_cpuset="0x00000008"
          nodeset="0x00000002" complete_nodeset="0x00000002" gp_index="9"/>
      @AT_NODE_1@
    </object>
    @AT_MACHINE@
  </object>
</topology>
)";

inline void replace_once(std::string& text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  HEADRACE_ASSERT(at != std::string::npos, "the text has what is to be replaced");
  text.replace(at, from.size(), to);
}

inline std::string two_nodes_xml(const TwoNodeMachine& machine) {
  const std::string gpu = R"(<object type="PCIDev" gp_index="40" pci_busid=")" + machine.pci_id +
                          R"(" pci_type="0302 [10de:2335] [10de:18be] a1" pci_link_speed="63.0"/>)";
  std::string xml = kTwoNodesXml;
  replace_once(xml, "@ALLOWED@", machine.allowed_nodes);
  replace_once(xml, "@AT_NODE_0@", machine.gpu == GpuPlace::kNode0 ? gpu : "");
  replace_once(xml, "@AT_NODE_1@", machine.gpu == GpuPlace::kNode1 ? gpu : "");
  replace_once(xml, "@AT_MACHINE@", machine.gpu == GpuPlace::kMachine ? gpu : "");
  return xml;
}

// From now on hwloc takes it for this machine, memory is bound as there; in a process that has made
// no arena yet (one of its own: the machine is read once).
inline void pretend_to_be(const TwoNodeMachine& machine) {
  const std::string xml = two_nodes_xml(machine);
  const int file = ::memfd_create("topology", 0);
  HEADRACE_ASSERT(::write(file, xml.data(), xml.size()) == static_cast<ssize_t>(xml.size()),
                  "a small file in memory");
  ::setenv("HWLOC_XMLFILE", ("/proc/self/fd/" + std::to_string(file)).c_str(), 1);
  ::setenv("HWLOC_THISSYSTEM", "1", 1);
}

// Whether this system lets a process say where its memory lies; some containers do not.
inline bool can_bind_memory() {
  constexpr std::size_t kPageBytes = 4096;
  constexpr int kDefault = 0;  // MPOL_DEFAULT
  void* page = ::mmap(nullptr, kPageBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  HEADRACE_ASSERT(page != MAP_FAILED, "a page can be had");
  const long result = ::syscall(SYS_mbind, page, kPageBytes, kDefault, nullptr, 0, 0);
  ::munmap(page, kPageBytes);
  return result == 0;
}

}  // namespace headrace::tiers
