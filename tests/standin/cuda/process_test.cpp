// What needs processes of its own: failure injection, settings, faults, memory shared between processes. This process
// itself never uses the driver.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>

#include <cstring>
#include <filesystem>

#include "native.h"
#include "test_support.hpp"

namespace standin::cuda::test {
namespace {

// Names of the functions that the library at `path` exports.
std::vector<std::string> exported_functions(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string file{std::istreambuf_iterator<char>(in), {}};
  auto at = [&](auto* out, size_t offset) { memcpy(out, file.data() + offset, sizeof *out); };
  Elf64_Ehdr head;
  at(&head, 0);
  std::vector<std::string> names;
  for (unsigned i = 0; i < head.e_shnum; i++) {
    Elf64_Shdr section, strings;
    at(&section, head.e_shoff + i * sizeof section);
    if (section.sh_type != SHT_DYNSYM) continue;
    at(&strings, head.e_shoff + section.sh_link * sizeof strings);
    for (size_t k = 0; k < section.sh_size / sizeof(Elf64_Sym); k++) {
      Elf64_Sym symbol;
      at(&symbol, section.sh_offset + k * sizeof symbol);
      if (symbol.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC)
        names.emplace_back(file.data() + strings.sh_offset + symbol.st_name);
    }
  }
  return names;
}

std::string library_path() {
  Dl_info info;
  return dladdr(reinterpret_cast<void*>(&cuInit), &info) ? info.dli_fname : "";
}

int start() {
  CUcontext c;
  CHILD_CHECK(cuInit(0) == CUDA_SUCCESS);
  CHILD_CHECK(cuDevicePrimaryCtxRetain(&c, 0) == CUDA_SUCCESS);
  CHILD_CHECK(cuCtxSetCurrent(c) == CUDA_SUCCESS);
  return 0;
}

// What body and its child processes write to stderr.
std::string stderr_of(const std::function<void()>& body) {
  char name[] = "/tmp/standin-stderr-XXXXXX";
  int fd = mkstemp(name), saved = dup(2);
  dup2(fd, 2);
  body();
  dup2(saved, 2);
  close(saved);
  close(fd);
  std::ifstream in(name);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  std::filesystem::remove(name);
  return text;
}

TEST(Failure, EveryEntryPointCanFail) {
  using AnyCall = CUresult (*)(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*);
  void* library = dlopen(library_path().c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  int seen = 0;
  for (const std::string& name : exported_functions(library_path())) {
    if (name.rfind("cu", 0) != 0) {
      EXPECT_EQ(name.rfind("standin_cuda_", 0), 0u) << name << " is exported, too";
      continue;
    }
    seen++;
    auto call = reinterpret_cast<AnyCall>(dlsym(library, name.c_str()));
    ASSERT_NE(call, nullptr) << name;
    EXPECT_EQ(in_child({{"STANDIN_CUDA_FAIL", name + ":1:777"}},
                       [&] {
                         CUresult r = call(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                           nullptr, nullptr, nullptr, nullptr);
                         return r == static_cast<CUresult>(777) ? 0 : 1;
                       }),
              0)
        << name;
  }
  EXPECT_GT(seen, 150);
}

TEST(Failure, CountsCallsAndLetsTheOthersThrough) {
  EXPECT_EQ(in_child({{"STANDIN_CUDA_FAIL", "cuMemAlloc:2:2,cuMemAlloc:5+,cuMemFree_v2:1:1"}},
                     [] {
                       if (start()) return 1;
                       CUdeviceptr p[7];
                       CUresult want[7] = {CUDA_SUCCESS,      CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS,
                                           CUDA_SUCCESS,      CUDA_ERROR_UNKNOWN,       CUDA_ERROR_UNKNOWN,
                                           CUDA_ERROR_UNKNOWN};
                       for (int i = 0; i < 7; i++) CHILD_CHECK(cuMemAlloc(&p[i], 16) == want[i]);
                       CHILD_CHECK(cuMemFree(p[0]) == CUDA_ERROR_INVALID_VALUE);
                       CHILD_CHECK(cuMemFree(p[0]) == CUDA_SUCCESS);
                       return 0;
                     }),
            0);
}

TEST(Failure, ChoosesLaunchesByKernel) {
  EXPECT_EQ(in_child({{"STANDIN_CUDA_FAIL", "cuLaunchKernel/plus:2:719,cuLaunchKernelEx/sum_native:1+:702"}},
                     [] {
                       if (start()) return 1;
                       CUmodule m;
                       std::string image = test_fatbin();
                       CHILD_CHECK(cuModuleLoadData(&m, image.data()) == CUDA_SUCCESS);
                       CUdeviceptr p;
                       CHILD_CHECK(cuMemAlloc(&p, 4) == CUDA_SUCCESS);
                       auto launch = [&](const char* name) {
                         CUfunction f;
                         if (CUresult r = cuModuleGetFunction(&f, m, name)) return r;
                         int n = 1;
                         void* params[] = {&p, &n};
                         return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr);
                       };
                       CHILD_CHECK(launch("add") == CUDA_SUCCESS);
                       CHILD_CHECK(launch("twice_plus") == CUDA_SUCCESS);
                       CHILD_CHECK(launch("add") == CUDA_SUCCESS);
                       CHILD_CHECK(launch("twice_plus") == CUDA_ERROR_LAUNCH_FAILED);
                       CHILD_CHECK(launch("twice_plus") == CUDA_SUCCESS);
                       int calls[2] = {0, 0};
                       auto body = [](void* c) { ++static_cast<int*>(c)[0]; };
                       auto destroy = [](void* c) { ++static_cast<int*>(c)[1]; };
                       CHILD_CHECK(standin_cuda_launch_native(nullptr, "x_sum_native", body, calls, destroy) ==
                                   CUDA_ERROR_LAUNCH_TIMEOUT);
                       CHILD_CHECK(calls[1] == 0);
                       CHILD_CHECK(standin_cuda_launch_native(nullptr, "other", body, calls, destroy) == CUDA_SUCCESS);
                       CHILD_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
                       CHILD_CHECK(calls[0] == 1 && calls[1] == 1);
                       return 0;
                     }),
            0);
}

TEST(Failure, ChoosesCallsByTheCallingLibrary) {
  EXPECT_EQ(in_child({{"STANDIN_CUDA_FAIL", "cuMemAlloc@process_test:2:2,cuMemAlloc@another_library:1+"}},
                     [] {
                       if (start()) return 1;
                       CUdeviceptr p;
                       CHILD_CHECK(cuMemAlloc(&p, 16) == CUDA_SUCCESS);
                       CHILD_CHECK(cuMemAlloc(&p, 16) == CUDA_ERROR_OUT_OF_MEMORY);
                       CHILD_CHECK(cuMemAlloc(&p, 16) == CUDA_SUCCESS);
                       return 0;
                     }),
            0);
}

TEST(Failure, MalformedRulesAreNamedAndIgnored) {
  for (const char* bad :
       {"cuMemAlloc", "cuMemAlloc:0", "cuMemAlloc:x", "cuMemAlloc:1:", "malloc:1", "cuMemAlloc/:1", "cuMemAlloc@:1"}) {
    std::string text = stderr_of([&] {
      EXPECT_EQ(in_child({{"STANDIN_CUDA_FAIL", std::string(bad) + ",cuMemFree:1"}},
                         [] {
                           if (start()) return 1;
                           CUdeviceptr p;
                           CHILD_CHECK(cuMemAlloc(&p, 16) == CUDA_SUCCESS);
                           CHILD_CHECK(cuMemFree(p) == CUDA_ERROR_UNKNOWN);
                           return 0;
                         }),
                0);
    });
    EXPECT_NE(text.find("STANDIN_CUDA_FAIL: '" + std::string(bad) + "'"), std::string::npos) << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }
}

TEST(Settings, DevicesAndCapability) {
  EXPECT_EQ(in_child({{"STANDIN_CUDA_DEVICES", "3"}, {"CUDA_VISIBLE_DEVICES", "2,0"}, {"STANDIN_CUDA_CC", "120"}},
                     [] {
                       if (start()) return 1;
                       int n = 0, bus = 0, major = 0;
                       CHILD_CHECK(cuDeviceGetCount(&n) == CUDA_SUCCESS && n == 2);
                       CHILD_CHECK(cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0) == CUDA_SUCCESS);
                       CHILD_CHECK(bus == 0x30);
                       CHILD_CHECK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0) ==
                                   CUDA_SUCCESS);
                       CHILD_CHECK(major == 12);
                       return 0;
                     }),
            0);
  EXPECT_EQ(in_child({{"CUDA_VISIBLE_DEVICES", ""}}, [] { return cuInit(0) == CUDA_ERROR_NO_DEVICE ? 0 : 1; }), 0);
}

TEST(Settings, PtxForNewerDevicesIsRefused) {
  std::string text = stderr_of([] {
    EXPECT_EQ(in_child({{"STANDIN_CUDA_CC", "75"}},
                       [] {
                         if (start()) return 1;
                         std::string image = test_fatbin();
                         CUmodule m;
                         CHILD_CHECK(cuModuleLoadData(&m, image.data()) == CUDA_ERROR_NO_BINARY_FOR_GPU);
                         return 0;
                       }),
              0);
  });
  EXPECT_NE(text.find("STANDIN_CUDA_CC"), std::string::npos) << text;
}

TEST(Settings, LaunchBlockingWaits) {
  EXPECT_EQ(in_child({{"CUDA_LAUNCH_BLOCKING", "1"}},
                     [] {
                       if (start()) return 1;
                       int ran = 0;
                       auto body = [](void* p) {
                         usleep(10000);
                         *static_cast<int*>(p) = 1;
                       };
                       CHILD_CHECK(standin_cuda_launch_native(nullptr, "slow", body, &ran, nullptr) == CUDA_SUCCESS);
                       CHILD_CHECK(ran == 1);
                       return 0;
                     }),
            0);
}

TEST(Settings, TraceHasOneLineForEachStep) {
  std::string path = ::testing::TempDir() + "standin-trace-" + std::to_string(getpid());
  EXPECT_EQ(in_child({{"STANDIN_CUDA_TRACE", path}},
                     [] {
                       if (start()) return 1;
                       CHILD_CHECK(standin_cuda_launch_native(
                                       nullptr, "traced", [](void*) {}, nullptr, nullptr) == CUDA_SUCCESS);
                       CHILD_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
                       CHILD_CHECK(standin_cuda_trace("\"ev\":\"own\"") > 0);
                       return 0;
                     }),
            0);
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  auto has = [&](const char* what) {
    return std::count_if(lines.begin(), lines.end(), [&](auto& l) { return l.find(what) != std::string::npos; });
  };
  EXPECT_EQ(lines.size(), 5u);
  EXPECT_EQ(has("\"ev\":\"launch\",\"api\":\"cuLaunchKernelEx\""), 1);
  EXPECT_EQ(has("\"ev\":\"kernel_begin\""), 1);
  EXPECT_EQ(has("\"ev\":\"kernel_end\""), 1);
  EXPECT_EQ(has("\"kernel\":\"traced\""), 3);
  EXPECT_EQ(has("\"ev\":\"own\""), 1);
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".seq");
}

TEST(Faults, ABadAddressStopsTheDeviceAndNamesThePlace) {
  std::string text = stderr_of([] {
    EXPECT_EQ(in_child({},
                       [] {
                         if (start()) return 1;
                         std::string image = test_fatbin();
                         CUmodule m;
                         CUfunction f;
                         CHILD_CHECK(cuModuleLoadData(&m, image.data()) == CUDA_SUCCESS);
                         CHILD_CHECK(cuModuleGetFunction(&f, m, "bad_address") == CUDA_SUCCESS);
                         CUdeviceptr p, end;
                         CHILD_CHECK(cuMemAlloc(&p, 4096) == CUDA_SUCCESS);
                         end = p + 4096;
                         void* params[] = {&end};
                         CHILD_CHECK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr) == CUDA_SUCCESS);
                         CHILD_CHECK(cuCtxSynchronize() == CUDA_ERROR_LAUNCH_FAILED);
                         CHILD_CHECK(cuMemcpyDtoD(p, p + 8, 8) == CUDA_ERROR_LAUNCH_FAILED);
                         return 0;
                       }),
              0);
  });
  EXPECT_NE(text.find("bad_address"), std::string::npos) << text;
  EXPECT_NE(text.find("bad address 0x"), std::string::npos) << text;
}

TEST(Ipc, TwoProcessesShareDeviceMemory) {
  int there[2], back[2];
  ASSERT_EQ(pipe(there), 0);
  ASSERT_EQ(pipe(back), 0);
  auto reader = [&] {
    CUipcMemHandle h;
    CHILD_CHECK(read(there[0], &h, sizeof h) == sizeof h);
    if (start()) return 1;
    CUdeviceptr p;
    CHILD_CHECK(cuIpcOpenMemHandle(&p, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS);
    int v = 0;
    CHILD_CHECK(cuMemcpyDtoH(&v, p + 8, 4) == CUDA_SUCCESS && v == 41);
    CHILD_CHECK(cuMemsetD32(p + 8, 42, 1) == CUDA_SUCCESS);
    CHILD_CHECK(cuIpcCloseMemHandle(p) == CUDA_SUCCESS);
    CHILD_CHECK(cuIpcCloseMemHandle(p) == CUDA_ERROR_INVALID_VALUE);
    char ok = 1;
    CHILD_CHECK(write(back[1], &ok, 1) == 1);
    return 0;
  };
  pid_t child = fork();
  if (child == 0) _exit(reader());
  EXPECT_EQ(in_child({},
                     [&] {
                       if (start()) return 1;
                       CUdeviceptr before, p;
                       CHILD_CHECK(cuMemAlloc(&before, 100) == CUDA_SUCCESS);
                       CHILD_CHECK(cuMemAlloc(&p, 100) == CUDA_SUCCESS);
                       CHILD_CHECK(cuMemsetD32(p + 8, 41, 1) == CUDA_SUCCESS);
                       CUipcMemHandle h;
                       CHILD_CHECK(cuIpcGetMemHandle(&h, p) == CUDA_SUCCESS);
                       CHILD_CHECK(write(there[1], &h, sizeof h) == sizeof h);
                       char ok = 0;
                       CHILD_CHECK(read(back[0], &ok, 1) == 1 && ok);
                       int v = 0;
                       CHILD_CHECK(cuMemcpyDtoH(&v, p + 8, 4) == CUDA_SUCCESS && v == 42);
                       return 0;
                     }),
            0);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  for (int fd : {there[0], there[1], back[0], back[1]}) close(fd);
}

}  // namespace
}  // namespace standin::cuda::test
