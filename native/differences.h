// The bindings of the codecs for difference coding.
#pragma once
#include <nanobind/nanobind.h>

namespace thinwire {

void bind_differences(nanobind::module_& m);

}  // namespace thinwire
