//! The pre-tokenizers that GGUF names in `tokenizer.ggml.pre`: how a text is split before byte pairs are merged.
//! Each pattern is that of the tokenizer.json of the models which carry the name.

use serde_json::{json, Value};

pub struct Pre {
    pub names: &'static [&'static str],
    pub nfc: bool,
    /// A split that is a token as a whole is that token, whatever the merges would make of it.
    pub ignore_merges: bool,
    /// Whether the beginning-of-text token is added where the file does not say.
    pub add_bos: bool,
    splits: &'static [&'static str],
}

const DIGIT: &str = r"\p{N}";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const DEEPSEEK_V3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const PLAIN: Pre = Pre { names: &[], nfc: false, ignore_merges: false, add_bos: false, splits: &[] };

const TABLE: &[Pre] = &[
    Pre { names: &["gpt-2", "phi-2"], splits: &[GPT2], ..PLAIN },
    Pre { names: &["smollm", "starcoder", "refact"], splits: &[DIGIT, GPT2], ..PLAIN },
    Pre { names: &["qwen2", "deepseek-r1-qwen"], nfc: true, splits: &[QWEN2], ..PLAIN },
    Pre { names: &["llama-bpe", "llama3", "llama-v3"], ignore_merges: true, add_bos: true, splits: &[LLAMA3], ..PLAIN },
    Pre { names: &["gpt-4o"], ignore_merges: true, splits: &[O200K], ..PLAIN },
    Pre { names: &["tekken"], ignore_merges: true, splits: &[TEKKEN], ..PLAIN },
    Pre { names: &["deepseek-v3"], splits: &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_V3], ..PLAIN },
];

/// The row of a name, or an error that lists the known ones.
pub fn find(name: &str) -> Result<&'static Pre, String> {
    TABLE.iter().find(|pre| pre.names.contains(&name)).ok_or_else(|| {
        let known: Vec<&str> = TABLE.iter().flat_map(|pre| pre.names.iter().copied()).collect();
        format!("tokenizer.ggml.pre is \"{name}\", a pre-tokenizer that is not known (known: {})", known.join(", "))
    })
}

impl Pre {
    /// The same as the `pre_tokenizer` of a tokenizer.json.
    pub fn to_json(&self) -> Value {
        let mut steps: Vec<Value> = self
            .splits
            .iter()
            .map(|regex| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false}))
            .collect();
        steps.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}));
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}
