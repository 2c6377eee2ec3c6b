#pragma once
#include "product.h"

#include <map>

namespace spillway::kernels {

/// Every product that the operations use, each made once.
class ProductSet {
 public:
  void add(const ProductSpec& spec) {
    if (!products_.contains(spec)) products_.emplace(spec, Product(spec));
  }
  /// std::out_of_range for one that was not added.
  const Product& at(const ProductSpec& spec) const { return products_.at(spec); }

 private:
  std::map<ProductSpec, Product> products_;
};

}  // namespace spillway::kernels
