// Tensors as arguments: a pointer and a shape, checked. torch offers DLPack's table of C functions, which takes 0.05 us
// a tensor where calling __dlpack__ takes 2; whatever else holds an array goes nanobind's own way.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <type_traits>
#include <utility>

namespace thinwire {

// DLPack 1.x's DLPackExchangeAPI; only the last but one function is used here.
struct TensorExchange {
    uint32_t major, minor;
    void* previous;
    void *allocate, *from_python, *to_python;
    int (*borrow)(void* object, nanobind::dlpack::dltensor* out);  // lives as long as `object`
    void* stream;
};

// Of the exact type that defines it, torch.Tensor: what a subclass holds may be no memory at all. Null for the others.
inline const TensorExchange* exchange_of(PyTypeObject* type) {
    static PyTypeObject* tensor_type = nullptr;
    static const TensorExchange* exchange = nullptr;
    if (type == tensor_type) return exchange;
    PyObject* capsule = type->tp_dict ? PyDict_GetItemString(type->tp_dict, "__dlpack_c_exchange_api__") : nullptr;
    if (!capsule || !PyCapsule_IsValid(capsule, "dlpack_exchange_api")) return nullptr;
    auto found = static_cast<const TensorExchange*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    if (found->major != 1 || !found->borrow) return nullptr;
    Py_INCREF(type);  // never freed, so its address stays its own
    tensor_type = type;
    exchange = found;
    return found;
}

// A contiguous tensor in this machine's memory. The caller's reference keeps it alive during the call.
template <class T, int NDIM>
class Array {
  public:
    using Other = nanobind::ndarray<T, nanobind::ndim<NDIM>, nanobind::c_contig, nanobind::device::cpu>;

    T* data() const { return data_; }
    int64_t shape(int dim) const { return shape_[dim]; }
    int64_t size() const {
        int64_t size = 1;
        for (int64_t length : shape_) size *= length;
        return size;
    }

    bool borrow(PyObject* object) noexcept {
        const TensorExchange* exchange = exchange_of(Py_TYPE(object));
        if (!exchange) return false;
        nanobind::dlpack::dltensor tensor;
        if (exchange->borrow(object, &tensor) != 0) {
            PyErr_Clear();
            return false;
        }
        if (tensor.ndim != NDIM || tensor.device.device_type != nanobind::device::cpu::value ||
            tensor.dtype != nanobind::dtype<std::remove_const_t<T>>())
            return false;
        int64_t stride = 1;
        bool contiguous = true;
        for (int dim = NDIM - 1; dim >= 0; --dim) {
            shape_[dim] = tensor.shape[dim];
            if (tensor.strides && shape_[dim] != 1 && tensor.strides[dim] != stride) contiguous = false;
            stride *= shape_[dim];
        }
        data_ = reinterpret_cast<T*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
        return contiguous || stride == 0;
    }

    void keep(Other other) {
        for (int dim = 0; dim < NDIM; ++dim) shape_[dim] = (int64_t)other.shape(dim);
        data_ = other.data();
        other_ = std::move(other);
    }

  private:
    T* data_ = nullptr;
    int64_t shape_[NDIM] = {};
    Other other_;
};

}  // namespace thinwire

namespace nanobind::detail {

template <class T, int NDIM>
struct type_caster<thinwire::Array<T, NDIM>> {
    using Tensor = thinwire::Array<T, NDIM>;
    NB_TYPE_CASTER(Tensor, make_caster<typename Tensor::Other>::Name)

    template <class Flags>
    bool from_python(handle src, Flags flags, cleanup_list* cleanup) noexcept {
        if (value.borrow(src.ptr())) return true;
        make_caster<typename Tensor::Other> other;
        if (!other.from_python(src, flags, cleanup) || !other.value.is_valid()) return false;
        value.keep(std::move(other.value));
        return true;
    }
};

}  // namespace nanobind::detail
