// SPDX-License-Identifier: MIT
// A module whose content depends on when and how it is loaded.
import { randomUUID } from 'node:crypto';

export const loaded = Date.now();
export const id = randomUUID();
export default class Shape {
  #side = Math.random();

  get area() { return this.#side ** 2; }
}
