/** Where rows of different heights begin: sums over blocks, so that a change or a look-up costs little at any length. */

const BLOCK = 512;

export class Heights {
  #heights: number[] = [];
  #blocks: number[] = [];
  #total = 0;

  /** All heights; those of rows that were not measured are estimates. */
  set(heights: number[]): void {
    this.#heights = heights;
    this.#blocks = new Array<number>(Math.ceil(heights.length / BLOCK)).fill(0);
    this.#total = 0;
    for (let index = 0; index < heights.length; index += 1) {
      this.#blocks[Math.floor(index / BLOCK)]! += heights[index]!;
      this.#total += heights[index]!;
    }
  }

  /** Add rows at the end. */
  append(heights: readonly number[]): void {
    for (const height of heights) {
      const block = Math.floor(this.#heights.length / BLOCK);
      this.#heights.push(height);
      this.#blocks[block] = (this.#blocks[block] ?? 0) + height;
      this.#total += height;
    }
  }

  get length(): number {
    return this.#heights.length;
  }

  get total(): number {
    return this.#total;
  }

  /** Change one height; by how much is returned. */
  change(index: number, height: number): number {
    const difference = height - (this.#heights[index] ?? height);
    if (difference === 0) return 0;
    this.#heights[index] = height;
    this.#blocks[Math.floor(index / BLOCK)]! += difference;
    this.#total += difference;
    return difference;
  }

  /** Where a row begins. */
  start(index: number): number {
    const block = Math.floor(index / BLOCK);
    let sum = 0;
    for (let one = 0; one < block; one += 1) sum += this.#blocks[one]!;
    for (let one = block * BLOCK; one < Math.min(index, this.#heights.length); one += 1) sum += this.#heights[one]!;
    return sum;
  }

  /** The row at a distance from the top, and where it begins. */
  at(offset: number): { index: number; start: number } {
    let start = 0;
    let block = 0;
    while (block < this.#blocks.length - 1 && start + this.#blocks[block]! <= offset) start += this.#blocks[block++]!;
    let index = block * BLOCK;
    while (index < this.#heights.length - 1 && start + this.#heights[index]! <= offset) start += this.#heights[index++]!;
    return { index, start };
  }

  height(index: number): number {
    return this.#heights[index] ?? 0;
  }
}
