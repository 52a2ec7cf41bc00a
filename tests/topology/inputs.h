#pragma once
// Small machines written by hand, one for each reader.

namespace muster::comm::topology {

inline constexpr const char* kMatrix =
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV4\tSYS\tPIX\tNODE\t0-3,8\t0\t\tN/A\n"
    "GPU1\tNV4\t X \tPHB\tPXB\tNODE\t0-3,8\t0\t\tN/A\n"
    "GPU2\tSYS\tPHB\t X \tSYS\tSYS\t4-7\t1\t\tN/A\n"
    "NIC0\tPIX\tPXB\tSYS\t X \tNODE\t\t\t\t\n"
    "NIC1\tNODE\tNODE\tSYS\tNODE\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n\nNIC Legend:\n\n  NIC0: mlx5_0\n  "
    "NIC1: mlx5_1\n";

inline constexpr const char* kP2p =
    " \tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tGNS\tX\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  GNS  = GPU not supported\n";

inline constexpr const char* kList =
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555555)\n"
    "  MIG 1g.10gb     Device  0: (UUID: MIG-aaaaaaaa-2222-3333-4444-555555555555)\n"
    "  MIG 2g.20gb     Device  1: (UUID: MIG-bbbbbbbb-2222-3333-4444-555555555555)\n"
    "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-22222222-2222-3333-4444-555555555555)\n";

inline constexpr const char* kNccl = R"xml(<!-- two GPUs of one switch, a third alone -->
<system version="1">
  <cpu numaid="0" affinity="000000ff,0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0000:12:00.0" count="4" tclass="0x030200"/>
          <nvlink target="fffffff:ffff:ff" count="2" tclass="0x068000"/>
          <c2c bw="64000" count="1"/>
        </gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="8">
        <gpu dev="1" sm="80" rank="1" gdr="1">
          <nvlink target="0000:11:00.0" count="4" tclass="0x030200"/>
          <nvlink target="fffffff:ffff:ff" count="2" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:13:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" maxconn="131072" gdr="1"/>
          <net name="mlx5_1" dev="1" speed="200000" port="2" guid="0x2" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
    <nic><net name="eth0" dev="2" speed="10000" port="0" guid="0x0" maxconn="65536" gdr="0"/></nic>
  </cpu>
  <cpu numaid="1" affinity="0000ff00,ffff0000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:81:00.0" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="16"><gpu dev="2" sm="80" rank="2"/></pci>
  </cpu>
</system>
)xml";

inline constexpr const char* kNcclGraph = R"xml(<graphs version="1">
  <graph id="0" pattern="4" nchannels="1" speedintra="12.5" typeintra="SYS">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="0"/></channel>
  </graph>
  <graph id="1" pattern="1" nchannels="1" speedintra="12"><channel><gpu dev="1"/><gpu dev="0"/></channel></graph>
</graphs>
)xml";

inline constexpr const char* kSmiXml = R"xml(<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>570.1</driver_version>
  <attached_gpus>2</attached_gpus>
  <gpu id="00000000:53:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <mig_mode><current_mig>Enabled</current_mig></mig_mode>
    <mig_devices><mig_device><index>0</index><uuid>MIG-1</uuid></mig_device></mig_devices>
    <uuid>GPU-1</uuid>
    <platformInfo><module_id>7</module_id></platformInfo>
    <pci>
      <pci_bus_id>00000000:53:00.0</pci_bus_id>
      <pci_gpu_link_info>
        <pcie_gen><max_link_gen>5</max_link_gen></pcie_gen>
        <link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths>
      </pci_gpu_link_info>
    </pci>
    <fabric><state>In Progress</state><cliqueId>0</cliqueId></fabric>
  </gpu>
  <gpu id="00000000:64:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <uuid>GPU-2</uuid>
    <pci><pci_bus_id>00000000:64:00.0</pci_bus_id></pci>
    <fabric><state>N/A</state></fabric>
  </gpu>
</nvidia_smi_log>
)xml";

inline constexpr const char* kHwloc = R"xml(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="3.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f">
    <info name="DMIProductName" value="A &amp; B&#10;C"/>
    <object type="Package" os_index="0" cpuset="0x00000003">
      <info name="CPUVendor" value="GenuineIntel"/>
      <info name="CPUModel" value="Intel(R) Xeon(R)"/>
      <object type="NUMANode" os_index="0" cpuset="0x00000003" local_memory="1073741824"/>
      <object type="Bridge" gp_index="1" bridge_type="0-1" depth="0" bridge_pci="0000:[10-1f]">
        <object type="Bridge" gp_index="2" bridge_type="1-1" bridge_pci="0000:[11-1f]" pci_busid="0000:10:01.0">
          <object type="Bridge" gp_index="3" bridge_type="1-1" bridge_pci="0000:[12-14]" pci_busid="0000:11:00.0">
            <object type="Bridge" gp_index="4" bridge_type="1-1" bridge_pci="0000:[13-13]" pci_busid="0000:12:00.0">
              <object type="PCIDev" gp_index="5" pci_busid="0000:13:00.0" pci_type="0302 [10de:1db8] [10de:131d] a1 00">
                <object type="OSDev" gp_index="6" name="nvml0" osdev_type="12">
                  <info name="GPUModel" value="Tesla V100"/><info name="NVIDIAUUID" value="GPU-1"/>
                </object>
              </object>
            </object>
            <object type="Bridge" gp_index="7" bridge_type="1-1" bridge_pci="0000:[14-14]" pci_busid="0000:12:01.0">
              <object type="PCIDev" gp_index="8" pci_busid="0000:14:00.0" pci_type="0207 [15b3:1017] [15b3:0007] 00 00">
                <object type="OSDev" gp_index="9" name="ib0" osdev_type="16"/>
                <object type="OSDev" gp_index="10" name="mlx5_0" osdev_type="32"/>
              </object>
            </object>
          </object>
        </object>
      </object>
    </object>
    <object type="Package" os_index="1" cpuset="0x0000000c">
      <object type="NUMANode" os_index="1" cpuset="0x0000000c" local_memory="1073741824"/>
      <object type="Bridge" gp_index="11" bridge_type="0-1" depth="0" bridge_pci="0000:[80-8f]">
        <object type="PCIDev" gp_index="12" pci_busid="0000:81:00.0" pci_type="0302 [10de:1db8] [10de:131d] a1 00">
          <object type="OSDev" gp_index="13" name="nvml1" osdev_type="12"><info name="NVIDIAUUID" value="GPU-2"/></object>
        </object>
        <object type="PCIDev" gp_index="14" subtype="NVSwitch" pci_busid="0000:82:00.0" pci_type="0680 [10de:1ac2] a1 00"/>
      </object>
    </object>
  </object>
  <distances2hetero nbobjs="3" kind="25" name="NVLinkBandwidth">
    <indexes length="24">OSDev:6 OSDev:13 PCIDev:14 </indexes>
    <u64values length="20">0 50000 25000 50000 0 </u64values>
    <u64values length="20">25000 25000 25000 0 </u64values>
  </distances2hetero>
</topology>
)xml";

}  // namespace muster::comm::topology
