() => {
  // From here on no answer ends by itself: never SmolLM2's <|endoftext|> and <|im_end|>.
  const asked = window.fetch;
  window.fetch = (path, options = {}) => {
    if (path !== "/v1/chat/completions") return asked(path, options);
    const body = {...JSON.parse(options.body), logit_bias: {0: -100, 2: -100}};
    return asked(path, {...options, body: JSON.stringify(body)});
  };
}
