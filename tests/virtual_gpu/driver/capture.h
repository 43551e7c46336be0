// Stream capture and the graphs that come of it.
//
// Callers: enqueue (an operation on a capturing stream becomes a node), events (they carry a capture from stream to
// stream), all functions that must not be called while capturing. Invariant: a graph's nodes stand in an order in which
// each comes after all it depends on; nothing changes them once the capture has ended.
#pragma once

#include <deque>
#include <set>
#include <thread>

#include "context.h"

namespace vgpu {

struct Node {
    Operation operation;
    std::vector<Node*> after;
};

struct Graph {
    Context* context = nullptr;
    std::deque<Node> nodes;
};

struct GraphExec {
    std::shared_ptr<const Graph> graph;
    Ticket last;  // launches of one executable graph do not overlap
};

struct Capture {
    uint64_t id = 0;
    std::shared_ptr<Graph> graph = std::make_shared<Graph>();
    std::weak_ptr<Stream> origin;
    std::vector<std::weak_ptr<Stream>> streams;
    std::thread::id thread;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    bool invalid = false, ended = false;
};

// Makes an operation a node of the stream's capture.
CUresult capture_operation(Stream& stream, Operation operation);
// Ends the capture badly and passes `code` on: it stays INVALIDATED until cuStreamEndCapture.
CUresult invalidate(Capture& capture, CUresult code);
// If an allocation, a synchronisation or the like could upset a capture of this or another thread: invalidates it and
// returns STREAM_CAPTURE_UNSUPPORTED.
CUresult end_captures_that_see_unsafe_calls(Driver& state);
// The same for work in the legacy stream, which blocking streams that are being captured would have to wait for.
CUresult end_captures_that_legacy_work_breaks(Driver& state, const Context& context);
void end_captures_of(Driver& state, const Context& context);

}  // namespace vgpu
