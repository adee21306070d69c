// Markdown to HTML that cannot do anything: markdown-it escapes all HTML, DOMPurify lets only these tags through.

import MarkdownIt from "./vendor/markdown-it.js";
import DOMPurify from "./vendor/purify.js";

const TAGS = [
  "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "s", "code", "pre", "blockquote",
  "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "a",
];
const ATTRIBUTES = ["href", "title", "start", "target", "rel"];

const markdown = new MarkdownIt({ html: false, linkify: false, breaks: true, typographer: false });
// A picture of another site would tell it that this was read: show its name only.
markdown.renderer.rules.image = (tokens, index) => markdown.utils.escapeHtml(tokens[index].content);
markdown.renderer.rules.link_open = (tokens, index, options, _, self) => {
  tokens[index].attrSet("target", "_blank");
  tokens[index].attrSet("rel", "noopener noreferrer nofollow");
  return self.renderToken(tokens, index, options);
};

/** Show Markdown in an element. */
export function show(element, text) {
  element.innerHTML = DOMPurify.sanitize(markdown.render(text), {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ATTRIBUTES,
    ALLOW_DATA_ATTR: false,
    ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
    RETURN_TRUSTED_TYPE: true,
  });
}
