// The Python module: `import gloo_rs_torch` registers the backend "gloo_rs" of torch.distributed.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "process_group.hpp"

namespace py = pybind11;
using namespace gloo_rs_torch;

namespace {

c10::intrusive_ptr<ProcessGroupGlooRs> create(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                                              std::chrono::milliseconds timeout) {
  return c10::make_intrusive<ProcessGroupGlooRs>(store, rank, size, timeout);
}

// torch's own exception() returns what Python cannot read.
py::object exception(const GlooRsWork &work) {
  const std::string failure = work.failure();
  if (failure.empty()) return py::none();
  return py::reinterpret_borrow<py::object>(PyExc_RuntimeError)(failure);
}

}  // namespace

PYBIND11_MODULE(gloo_rs_torch, module) {
  module.doc() = "The backend gloo_rs of torch.distributed: torch.distributed.init_process_group(\"gloo_rs\").";
  // Has the classes from which these derive.
  py::module_ distributed = py::module_::import("torch.distributed");
  const auto no_gil = py::call_guard<py::gil_scoped_release>();

  py::class_<ProcessGroupGlooRs, c10d::ProcessGroup, c10::intrusive_ptr<ProcessGroupGlooRs>>(module, "ProcessGroupGlooRs")
      .def(py::init(&create), py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), no_gil)
      .def("abort", &ProcessGroupGlooRs::abort, no_gil,
           "Ends all calls of this group, on all ranks, with an exception. The group cannot be used afterwards.");
  py::class_<GlooRsWork, c10d::Work, c10::intrusive_ptr<GlooRsWork>>(module, "Work")
      .def("exception", &exception, "The exception with which this work has ended, or None.")
      .def("abort", &GlooRsWork::abort, no_gil,
           "Ends this work with an exception. A collective ends with all others of its group, on all ranks; a message alone.");
  py::class_<CollectiveWork, GlooRsWork, c10::intrusive_ptr<CollectiveWork>>(module, "CollectiveWork");
  py::class_<MessageWork, GlooRsWork, c10::intrusive_ptr<MessageWork>>(module, "MessageWork");

  distributed.attr("Backend").attr("register_backend")("gloo_rs", module.attr("ProcessGroupGlooRs"));
}
