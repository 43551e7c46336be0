// A program that runs a few kernels on the virtual GPU without Python, for processors that are only emulated here.
//
// Started by scripts/check_arm64 with the PTX of driver_ptx.py as its argument and libcuda.so.1 on its path. Prints
// what it has checked; ends with 1 and a line number where something is not as it must be.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "../driver/cuda_api.h"

CUDA_API cuInit(unsigned);
CUDA_API cuDeviceGetName(char*, int, CUdevice);
CUDA_API cuCtxCreate_v2(CUcontext*, unsigned, CUdevice);
CUDA_API cuCtxDestroy_v2(CUcontext);
CUDA_API cuCtxSynchronize();
CUDA_API cuModuleLoadData(CUmodule*, const void*);
CUDA_API cuModuleGetFunction(CUfunction*, CUmodule, const char*);
CUDA_API cuMemAlloc_v2(CUdeviceptr*, size_t);
CUDA_API cuMemHostAlloc(void**, size_t, unsigned);
CUDA_API cuMemcpyDtoH_v2(void*, CUdeviceptr, size_t);
CUDA_API cuStreamCreate(CUstream*, unsigned);
CUDA_API cuStreamQuery(CUstream);
CUDA_API cuStreamSynchronize(CUstream);
CUDA_API cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
CUDA_API cuStreamEndCapture(CUstream, CUgraph*);
CUDA_API cuGraphInstantiateWithFlags(CUgraphExec*, CUgraph, unsigned long long);
CUDA_API cuGraphLaunch(CUgraphExec, CUstream);
CUDA_API cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void**, void**);

namespace {

void check(bool holds, int line) {
    if (holds) return;
    printf("selftest.cpp:%d: failed\n", line);
    exit(1);
}
#define CHECK(...) check((__VA_ARGS__), __LINE__)

}  // namespace

int main(int count, char** arguments) {
    CHECK(count == 2);
    std::ifstream file(arguments[1]);
    std::ostringstream ptx;
    ptx << file.rdbuf();
    char name[64];
    CUcontext context;
    CUmodule module;
    CUfunction fill, increment, gate;
    CUstream stream;
    CHECK(!cuInit(0) && !cuDeviceGetName(name, sizeof name, 0) && !cuCtxCreate_v2(&context, 0, 0));
    CHECK(!cuModuleLoadData(&module, ptx.str().c_str()) && !cuStreamCreate(&stream, 1));
    CHECK(!cuModuleGetFunction(&fill, module, "fill") && !cuModuleGetFunction(&increment, module, "increment"));
    CHECK(!cuModuleGetFunction(&gate, module, "gate"));
    printf("%s: a module is loaded\n", name);

    constexpr unsigned WORDS = 1000;
    CUdeviceptr out;
    unsigned value = 7, words = WORDS;
    void* parameters[] = {&out, &value, &words};
    CHECK(!cuMemAlloc_v2(&out, 4 * WORDS));
    void* flag;
    CHECK(!cuMemHostAlloc(&flag, 4, 2));
    auto* let_go = static_cast<volatile unsigned*>(flag);
    *let_go = 0;
    void* flag_parameter[] = {&flag};
    CHECK(!cuLaunchKernel(gate, 1, 1, 1, 1, 1, 1, 0, stream, flag_parameter, nullptr));
    CHECK(!cuLaunchKernel(fill, 4, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr));
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    *let_go = 1;
    CHECK(!cuStreamSynchronize(stream));
    std::vector<unsigned> host(WORDS);
    CHECK(!cuMemcpyDtoH_v2(host.data(), out, 4 * WORDS));
    for (const unsigned word : host) CHECK(word == 7);
    printf("kernels run in their stream, %u words are right\n", WORDS);

    CUgraph graph;
    CUgraphExec executable;
    CHECK(!cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < 5; ++i) CHECK(!cuLaunchKernel(increment, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr));
    CHECK(!cuStreamEndCapture(stream, &graph) && !cuGraphInstantiateWithFlags(&executable, graph, 0));
    for (int i = 0; i < 3; ++i) CHECK(!cuGraphLaunch(executable, stream));
    CHECK(!cuStreamSynchronize(stream) && !cuMemcpyDtoH_v2(host.data(), out, 8));
    CHECK(host[0] == 7 + 15 && host[1] == 7);
    printf("a graph is captured and launched\n");

    words = WORDS + 24;  // past the end of the allocation
    CHECK(!cuLaunchKernel(fill, 4, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr));
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS &&
          cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    printf("a store outside is an error, and stays one\n");
    return 0;
}
