// Executable graphs: instantiation, launch, and what can be asked of a graph.
//
// Invariant: a launch is one piece of work of its stream; its nodes run in an order that respects their dependencies
// and, where the schedule is reverse or random, differs from the order in which they were captured.
#include <algorithm>
#include <random>

#include "capture.h"

using namespace vgpu;

namespace {

// Positions of the nodes in the order in which they run.
std::vector<size_t> order_of(const Graph& graph, const Options& options, uint64_t launch) {
    std::map<const Node*, size_t> place;
    std::vector<size_t> missing(graph.nodes.size()), ready, order;
    std::vector<std::vector<size_t>> next(graph.nodes.size());
    for (size_t i = 0; i < graph.nodes.size(); ++i) place[&graph.nodes[i]] = i;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
        missing[i] = graph.nodes[i].after.size();
        for (const Node* before : graph.nodes[i].after) next[place.at(before)].push_back(i);
        if (!missing[i]) ready.push_back(i);
    }
    std::mt19937_64 random(options.seed ^ launch);
    while (!ready.empty()) {
        std::sort(ready.begin(), ready.end());
        const size_t chosen = options.order == Order::forward   ? 0
                              : options.order == Order::reverse ? ready.size() - 1
                                                                : random() % ready.size();
        order.push_back(ready[chosen]);
        ready.erase(ready.begin() + static_cast<long>(chosen));
        for (const size_t follower : next[order.back()])
            if (!--missing[follower]) ready.push_back(follower);
    }
    return order;
}

Result run_graph(const Graph& graph, const std::vector<size_t>& order, const Running& running) {
    Running each{running.injection, true, 0};
    for (const size_t at : order) {
        const Operation& operation = graph.nodes[at].operation;
        if (operation.type == CU_GRAPH_NODE_TYPE_KERNEL) ++each.node;
        const Result result = operation.run(each);
        if (result.code) return result;
    }
    const Injection& injection = running.injection;
    if ((injection.fault || injection.flip) && injection.node > each.node)
        return {CUDA_ERROR_UNKNOWN,
                "'" + injection.text + "': the graph has only " + std::to_string(each.node) + " kernels"};
    return {};
}

CUresult instantiate(CUgraphExec* out, CUgraph handle) {
    Call call;
    if (call.error) return call.error;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    const auto graph = call.state.graphs.find(handle);
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    const auto exec = std::make_shared<GraphExec>();
    exec->graph = graph;
    *out = call.state.graph_execs.add(exec);
    return CUDA_SUCCESS;
}

}  // namespace

void vgpu::remove_graphs_of(const Context& context) {
    Driver& state = driver();
    state.graphs.remove_if([&](const Graph& graph) { return graph.context == &context; });
    state.graph_execs.remove_if([&](const GraphExec& exec) { return exec.graph->context == &context; });
}

CUDA_API cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
    constexpr unsigned long long AUTO_FREE = 1, UPLOAD = 2, NODE_PRIORITY = 8;  // change nothing here
    return flags & ~(AUTO_FREE | UPLOAD | NODE_PRIORITY) ? CUDA_ERROR_INVALID_VALUE : instantiate(exec, graph);
}
CUDA_API cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* failed, char* log, size_t log_bytes) {
    if (failed) *failed = nullptr;
    if (log && log_bytes) *log = 0;
    return instantiate(exec, graph);
}
CUDA_API cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* failed, char* log, size_t log_bytes) {
    return cuGraphInstantiate_v2(exec, graph, failed, log, log_bytes);
}

CUDA_API cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    Call call;
    if (call.error) return call.error;
    const auto exec = call.state.graph_execs.find(handle);
    const auto stream = find_stream(call, stream_handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) return invalidate(*stream->capture, CUDA_ERROR_NOT_SUPPORTED);  // child graphs: not done here
    if (stream == stream->context->legacy)
        if (const CUresult broken = end_captures_that_legacy_work_breaks(call.state, *stream->context)) return broken;
    call.state.statistics.graph_launch();
    const Injection injection = call.state.control.take(Target::graph);
    const auto order =
        order_of(*exec->graph, call.state.configuration.options, call.state.control.count(Target::graph));
    const auto run = [graph = exec->graph, order](const Running& running) { return run_graph(*graph, order, running); };
    Task task = task_of(run, injection);
    task.after.push_back(exec->last);
    exec->last = submit(call.state, *stream, std::move(task));
    return CUDA_SUCCESS;
}

CUDA_API cuGraphUpload(CUgraphExec handle, CUstream stream) {
    Call call;
    if (call.error) return call.error;
    if (!call.state.graph_execs.find(handle)) return CUDA_ERROR_INVALID_VALUE;
    return find_stream(call, stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUDA_API cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
    Call call;
    if (call.error) return call.error;
    const auto graph = call.state.graphs.find(handle);
    if (!graph || !count || (nodes && !*count)) return CUDA_ERROR_INVALID_VALUE;
    if (nodes)
        for (size_t i = 0; i < *count; ++i)  // what is beyond the end is set to null, as documented
            nodes[i] = i < graph->nodes.size() ? reinterpret_cast<CUgraphNode>(&graph->nodes[i]) : nullptr;
    *count = nodes ? std::min(*count, graph->nodes.size()) : graph->nodes.size();
    return CUDA_SUCCESS;
}

CUDA_API cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
    Call call;
    if (call.error) return call.error;
    if (!type) return CUDA_ERROR_INVALID_VALUE;
    CUresult answer = CUDA_ERROR_INVALID_VALUE;
    call.state.graphs.each([&](const Graph& graph) {
        for (const Node& node : graph.nodes)
            if (reinterpret_cast<CUgraphNode>(const_cast<Node*>(&node)) == handle) {
                *type = node.operation.type;
                answer = CUDA_SUCCESS;
            }
    });
    return answer;
}

CUDA_API cuGraphDestroy(CUgraph handle) {
    Call call;
    if (call.error) return call.error;
    return call.state.graphs.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API cuGraphExecDestroy(CUgraphExec handle) {
    Call call;
    if (call.error) return call.error;
    return call.state.graph_execs.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
