// The driver's objects (contexts, streams, events, modules, functions, allocations) and the one lock over all of them.
//
// Callers: every API function begins with a Call, which takes the lock and checks what all functions check.
// Invariants: handles are looked up, never trusted; contexts are never freed, so that a thread that still has one on
// its stack can be told that it was destroyed. The one Driver is left behind at exit on purpose: a condition variable
// that is destroyed while a thread waits on it hangs the process.
#pragma once

#include <sys/types.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "configuration.h"
#include "control.h"
#include "cuda_api.h"
#include "executor.h"
#include "statistics.h"

namespace vgpu {

struct Capture;
struct Graph;
struct GraphExec;
struct Node;
struct Stream;

struct Context {
    uint64_t id = 0;
    unsigned flags = 0;
    int uses = 0;  // attachments; of the primary context, retentions
    bool primary = false, destroyed = false;
    std::shared_ptr<Stream> legacy;
    std::map<std::thread::id, std::shared_ptr<Stream>> per_thread;
    std::vector<std::pair<std::shared_ptr<Queue>, bool>>
        queues;  // all that may have work, and whether they block legacy
    std::array<size_t, CU_LIMIT_COUNT> limits{1024, 1 << 20, 8 << 20};
    int cache_preference = 0;
};

struct Stream {
    Context* context = nullptr;
    std::shared_ptr<Queue> queue = std::make_shared<Queue>();
    uint64_t id = 0;
    unsigned flags = 0;
    int priority = 0;
    std::shared_ptr<Capture> capture;
    std::vector<Node*> ends;  // what the next captured operation comes after; the capture's graph owns them
};

// One cuEventRecord.
struct Record {
    Ticket ticket;
    int64_t time_ns = 0;
};

struct Event {
    Context* context = nullptr;
    unsigned flags = 0;
    std::shared_ptr<Record> record;    // the last one
    std::shared_ptr<Capture> capture;  // instead, if the last one was recorded in a capture
    std::vector<Node*> nodes;
};

struct LoadedModule;

struct Function {
    LoadedModule* module = nullptr;
    const Kernel* kernel = nullptr;
    int dynamic_shared_limit = 0;
    std::array<unsigned, 3> block{1, 1, 1};  // the old launch interface keeps these with the function
    unsigned shared = 0, parameter_size = 0;
    std::vector<uint8_t> parameters;
};

struct LoadedModule {
    Context* context = nullptr;
    std::unique_ptr<Module> module;
    std::map<std::string, std::unique_ptr<Function>> functions;
};

// What the API remembers of an allocation besides what Memory knows.
struct Block {
    Context* context = nullptr;
    Kind kind = Kind::device;
    uint64_t bytes = 0;
    unsigned flags = 0;
};

// Live objects by their handle.
template <class Object, class Handle>
class Handles {
public:
    Handle add(std::shared_ptr<Object> object) {
        const Handle handle = reinterpret_cast<Handle>(object.get());
        live_[handle] = std::move(object);
        return handle;
    }
    std::shared_ptr<Object> find(Handle handle) const {
        const auto found = live_.find(handle);
        return found == live_.end() ? nullptr : found->second;
    }
    bool remove(Handle handle) { return live_.erase(handle) > 0; }
    template <class Condition>
    void remove_if(Condition condition) {
        std::erase_if(live_, [&](const auto& entry) { return condition(*entry.second); });
    }
    template <class Visitor>
    void each(Visitor visit) const {
        for (const auto& entry : live_) visit(*entry.second);
    }

private:
    std::unordered_map<Handle, std::shared_ptr<Object>> live_;
};

class Driver {
public:
    std::mutex mutex;
    Executor executor{mutex};
    Configuration configuration;
    Control control;
    Statistics statistics;
    std::unique_ptr<Memory> memory;
    pid_t process = 0;              // that called cuInit; 0: none
    CUresult error = CUDA_SUCCESS;  // sticky, of the whole process
    std::string last_fault;         // text of the last fault or refused module
    std::atomic<bool> stop{false};  // ends kernels that run
    uint64_t next_id = 1;
    Context* primary = nullptr;  // null until first retained
    Handles<Context, CUcontext> contexts;
    Handles<Stream, CUstream> streams;
    Handles<Event, CUevent> events;
    Handles<LoadedModule, CUmodule> modules;
    Handles<Graph, CUgraph> graphs;
    Handles<GraphExec, CUgraphExec> graph_execs;
    std::unordered_map<CUfunction, std::shared_ptr<LoadedModule>> functions;  // to what keeps them alive
    std::map<uint64_t, Block> blocks;
    std::vector<std::weak_ptr<Capture>> captures;

    // Makes `code` the answer to all later calls of the process.
    void fail(CUresult code, const std::string& text);
    // Applies what the control file says to the process as a whole.
    void look_at_control();
    // Waits for all work of a context.
    CUresult drain(std::unique_lock<std::mutex>& lock, Context& context);
    void write_counters();
};

Driver& driver();

// The contexts of the calling thread, innermost last.
struct ContextStack {
    static constexpr int DEPTH = 64;
    Context* entries[DEPTH];
    int depth;
    Context* top() const { return depth ? entries[depth - 1] : nullptr; }
};
ContextStack& context_stack();

enum class Needs { nothing, initialised, context };

// Opens an API function: takes the driver's lock and makes the checks that all share. `if (call.error) return
// call.error;`
class Call {
public:
    explicit Call(Needs needs = Needs::context, bool even_if_failed = false);
    // For functions that must not be called while a capture could see them; ends such captures.
    CUresult forbid_in_capture();
    // The answer of a synchronising function: the sticky error, if work has failed.
    CUresult outcome() const { return state.error; }

    Driver& state;
    std::unique_lock<std::mutex> lock;
    Context* context = nullptr;
    CUresult error = CUDA_SUCCESS;
};

}  // namespace vgpu
