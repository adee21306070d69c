// The end of the text stays in sight while it grows, until the reader scrolls up.

import { byId } from "./dom.js";

let following = true;
let top = 0; // where the text was scrolled to

/** Show the end of the text, and follow it from now on. */
export function toEnd() {
  following = true;
  follow();
}

function follow() {
  const isEmpty = !byId("messages").firstChild; // the welcome is read from its beginning
  if (following && !isEmpty) byId("thread").scrollTop = byId("thread").scrollHeight;
  byId("bottom").hidden = following || isEmpty;
}

function scrolled() {
  const place = byId("thread");
  const up = place.scrollTop < top;
  top = place.scrollTop;
  const isAtEnd = place.scrollHeight - top - place.clientHeight < 2; // sizes are rounded
  following = isAtEnd || (following && !up);
  byId("bottom").hidden = following;
}

/** Follow whatever changes the height of the text, or of the room that it has. */
export function prepare() {
  byId("thread").addEventListener("scroll", scrolled);
  byId("bottom").addEventListener("click", toEnd);
  const sizes = new ResizeObserver(follow);
  for (const id of ["thread", "messages"]) sizes.observe(byId(id));
}
