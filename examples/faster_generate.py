"""One line in code that already uses transformers: the same tokens, sooner."""

import time

import torch

from mmspec_agent import Engine, load_model

model, tokenizer = load_model("reference-lm", dtype="float32")  # or AutoModelForCausalLM and AutoTokenizer of your own

text = (
    "Turn this text into a bullet list. Use the words of the text.\n\n"
    "The harbour ferry sails every forty minutes from the old pier. Buy the ticket at the red kiosk before you board, "
    "because the crew does not sell any. Dogs travel free but must stay on the lower deck."
)
chat = [{"role": "user", "content": text}]
prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
options = {"max_new_tokens": 80, "do_sample": False}

engine = Engine(model, tokenizer)

started = time.perf_counter()
plain = model.generate(**inputs, **options)
between = time.perf_counter()
faster = model.generate(**inputs, **options, custom_generate=engine.custom_generate)  # the one line
ended = time.perf_counter()

print(tokenizer.decode(faster[0, inputs.input_ids.shape[1] :], skip_special_tokens=True))
print(f"\n{(between - started) / (ended - between):.1f} times as fast, same tokens: {torch.equal(plain, faster)}")
