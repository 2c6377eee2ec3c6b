#pragma once
// The consumer's own.
#define CONSUMER_ERROR_H

struct Error {
  int code = 0;
};
