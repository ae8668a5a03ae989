/** Lists that change while they are read: a row that moves under the pointer does not receive the click of another. */

import { untrack } from "svelte";

/** Milliseconds for which a row that has moved takes no click: as long as a user needs to see that it has. */
const SEEN = 500;

/** Whether a row has appeared or moved a moment ago; made while its component is. */
export class Steady {
  moves = $state<true | undefined>(true);

  /** `place` is the index of the row. */
  constructor(place: () => number) {
    $effect(() => {
      void place();
      untrack(() => (this.moves = true));
      const timer = setTimeout(() => (this.moves = undefined), SEEN);
      return () => clearTimeout(timer);
    });
  }

  /** The action of a button: not for a click of a pointer while the row moves. Keys stay with the row. */
  guarded(action: () => unknown): (event: MouseEvent) => void {
    return ({ detail }) => {
      if (!(this.moves && detail > 0)) void action();
    };
  }
}
