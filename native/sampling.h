// The bindings of minibatch training, and what they need of module.cpp.
#pragma once
#include <nanobind/nanobind.h>

#include "kernels.h"

namespace thinwire {

// The kernels of the instruction set in use.
const Kernels& current_kernels();

void bind_sampling(nanobind::module_& m);

}  // namespace thinwire
