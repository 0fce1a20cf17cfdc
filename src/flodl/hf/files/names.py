"""The names of the files of a model."""

CONFIG = "config.json"
MODULES = "modules.json"  # sentence-transformers

SAFETENSORS = "model.safetensors"
SAFETENSORS_INDEX = "model.safetensors.index.json"
TORCH_SAVE = "pytorch_model.bin"
TORCH_SAVE_INDEX = "pytorch_model.bin.index.json"
# In the order of preference.
WEIGHTS = (SAFETENSORS, SAFETENSORS_INDEX, TORCH_SAVE, TORCH_SAVE_INDEX)

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
)
# Next to the config of a sentence-transformers model.
SENTENCE_FILES = (MODULES, "config_sentence_transformers.json", "sentence_bert_config.json")
