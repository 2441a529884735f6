// Registers CUDA with a CPU build of PyTorch: a device guard and hooks that do nothing, for one device, cuda:0.
//
// Without them, autograd ends the process at the first tensor whose device is `cuda`. The tensors of the simulated GPU
// (simulation.py) hold their numbers in CPU memory, so that no function below has any work to do.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace simulated {

const c10::Device GPU(c10::DeviceType::CUDA, 0);

struct DeviceGuard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device getDevice() const override { return GPU; }
  c10::Device exchangeDevice(c10::Device) const override { return GPU; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, GPU); }
};

}  // namespace simulated

// The registries look classes up by name, in the namespace `at`.
namespace at {

struct SimulatedHooks final : CUDAHooksInterface {
  explicit SimulatedHooks(CUDAHooksArgs) {}

  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }

  int getNumGPUs() const override { return 1; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  void deviceSynchronize(DeviceIndex) const override {}

  bool isPinnedPtr(const void*) const override { return false; }
  Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
};

using c10::impl::DeviceGuardImplRegistrar;
static const DeviceGuardImplRegistrar guard(c10::DeviceType::CUDA, new simulated::DeviceGuard());
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", SimulatedHooks)

}  // namespace at
