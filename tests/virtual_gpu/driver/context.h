// What a context owns and how its streams are found.
//
// Callers: all API functions that take a stream. Invariant: the legacy stream of a live context always exists.
#pragma once

#include "state.h"

namespace vgpu {

constexpr int LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5;

std::shared_ptr<Stream> new_stream(Driver& state, Context& context, unsigned flags, int priority, bool named);
// The stream that a handle names for the calling thread; null if none.
std::shared_ptr<Stream> find_stream(Call& call, CUstream handle);
// Forgets graphs whose kernels belong to the context.
void remove_graphs_of(const Context& context);

// What is put into a stream: run at once, or recorded if the stream is being captured.
struct Running {
    Injection injection;
    bool in_graph = false;
    uint64_t node = 0;  // which kernel of the graph, from 1
};
struct Operation {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_HOST;
    std::function<Result(const Running&)> run;
    bool host = false;
};

// Puts an operation into a stream. `launch` counts as a kernel launch, to which faults may be injected.
CUresult enqueue(Call& call, const std::shared_ptr<Stream>& stream, Operation operation, bool launch = false);
// The task that runs an operation, with the faults that are to happen to it.
Task task_of(std::function<Result(const Running&)> run, const Injection& injection);
// The same for work that is no operation of a graph; the caller has seen to captures.
Ticket submit(Driver& state, Stream& stream, Task task);
// Puts an operation into the legacy stream and waits for it.
CUresult perform(Call& call, Operation operation);

}  // namespace vgpu
