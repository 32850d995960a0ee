// SPDX-License-Identifier: MIT
// Functions that stand in for those of the runtime look like them.
'use strict';

// Give a function the name, the length and the properties of the real one.
function dressed(function_, real) {
  Object.defineProperty(function_, 'name', { value: real.name });
  Object.defineProperty(function_, 'length', { value: real.length });
  for (const key of Reflect.ownKeys(real)) {
    if (!['name', 'length', 'prototype', 'arguments', 'caller', 'native'].includes(key)) {
      Object.defineProperty(function_, key, Object.getOwnPropertyDescriptor(real, key));
    }
  }
  return function_;
}

module.exports = { dressed };
