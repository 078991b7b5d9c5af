"""HF's Trainer on a small Llama from its configuration, with padding masks and its own logging."""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count, length):
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, 512, (count, length), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        row = self.tokens[index]
        return {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row.clone()}


config = LlamaConfig(
    vocab_size=512,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=160,
    use_cache=False,
)
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=4,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
    ddp_backend="gloo",
)
trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Sentences(64, 256))
result = trainer.train()
print(result.training_loss)
