//! What tokenizer_config.json says, and which tokens end a generation.

use serde_json::Value;

/// What the files beside the vocabulary tell about it.
#[derive(Default)]
pub struct Config {
    pub bos: Option<String>,
    pub eos: Option<String>,
    pub unk: Option<String>,
    pub pad: Option<String>,
    /// Name and source; the one template of a model that has but one is "default".
    pub templates: Vec<(String, String)>,
}

/// Token texts that end a turn or a text in the families that use them.
const ENDS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<|end_of_turn|>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>",
    "<|user_end|>",
];

impl Config {
    pub fn parse(json: &[u8]) -> Result<Config, String> {
        let root: Value = serde_json::from_slice(json).map_err(|e| format!("tokenizer_config.json: {e}"))?;
        let token = |key: &str| match root.get(key) {
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Object(fields)) => match fields.get("content") {
                Some(Value::String(text)) => Ok(Some(text.clone())),
                _ => Err(format!("tokenizer_config.json: {key} has no content")),
            },
            None | Some(Value::Null) => Ok(None),
            Some(_) => Err(format!("tokenizer_config.json: {key} is neither a text nor an added token")),
        };
        let templates = match root.get("chat_template") {
            None | Some(Value::Null) => vec![],
            Some(Value::String(source)) => vec![("default".to_string(), source.clone())],
            Some(Value::Array(list)) => list
                .iter()
                .map(|entry| match (entry.get("name"), entry.get("template")) {
                    (Some(Value::String(name)), Some(Value::String(source))) => Ok((name.clone(), source.clone())),
                    _ => Err("tokenizer_config.json: chat_template has an entry without name and template".to_string()),
                })
                .collect::<Result<_, _>>()?,
            Some(_) => return Err("tokenizer_config.json: chat_template is neither a text nor a list".into()),
        };
        Ok(Config {
            bos: token("bos_token")?,
            eos: token("eos_token")?,
            unk: token("unk_token")?,
            pad: token("pad_token")?,
            templates,
        })
    }

    /// The variables that templates see: each only where there is such a token.
    pub fn variables(&self) -> Vec<(String, String)> {
        [("bos_token", &self.bos), ("eos_token", &self.eos), ("unk_token", &self.unk), ("pad_token", &self.pad)]
            .into_iter()
            .filter_map(|(name, token)| token.as_ref().map(|t| (name.to_string(), t.clone())))
            .collect()
    }
}

/// The ids that end a generation: `eos` and the special tokens that the families use for it. `find` gives the id of a
/// text that is a special token.
pub fn end_ids(eos: Option<u32>, find: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
    let has = |text: &str| find(text).is_some();
    // In the harmony format <|end|> closes a message and the answer goes on; <|return|> and <|call|> end it.
    let harmony = has("<|return|>") && has("<|call|>");
    let mut ids: Vec<u32> = eos.into_iter().collect();
    ids.extend(ENDS.iter().filter(|text| !(harmony && **text == "<|end|>")).filter_map(|text| find(text)));
    ids.sort_unstable();
    ids.dedup();
    ids
}
