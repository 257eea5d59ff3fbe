//! A tokenizer from the vocabulary in a GGUF file: `tokenizer.ggml.*` as arrays, made into the model, normaliser,
//! pre-tokenizer and decoder that a tokenizer.json of the same model would hold.

use crate::model::SharedModel;
use crate::pre;
use crate::special::Config;
use crate::tokenizer::Inner;
use serde::de::DeserializeOwned;
use serde_json::{json, Value};
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use tokenizers::models::bpe::{BpeBuilder, Vocab};
use tokenizers::models::ModelWrapper;
use tokenizers::{AddedToken, TokenizerBuilder};

/// `tokenizer.ggml.token_type`, as llama.cpp numbers it.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

pub struct Vocabulary<'a> {
    pub model: &'a str,
    pub pre: Option<&'a str>,
    pub tokens: Vec<&'a str>,
    pub scores: &'a [f32],
    pub types: &'a [i32],
    pub merges: Vec<&'a str>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub pad: Option<u32>,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub add_space_prefix: Option<bool>,
    pub chat_template: Option<&'a str>,
}

type Result<T> = std::result::Result<T, String>;

fn parse<T: DeserializeOwned>(json: Value) -> Result<Option<T>> {
    serde_json::from_value(json).map(Some).map_err(|e| e.to_string())
}

impl<'a> Vocabulary<'a> {
    fn kind(&self, id: usize) -> i32 {
        self.types.get(id).copied().unwrap_or(NORMAL)
    }

    /// A token's text. User-defined pieces have spaces again in place of "▁", as converters mostly write them already.
    fn text(&self, id: usize) -> String {
        match self.model == "llama" && self.kind(id) == USER_DEFINED {
            true => self.tokens[id].replace('▁', " "),
            false => self.tokens[id].to_string(),
        }
    }

    fn token(&self, key: &str, id: Option<u32>) -> Result<Option<String>> {
        let Some(id) = id else { return Ok(None) };
        match self.tokens.get(id as usize) {
            Some(token) => Ok(Some(token.to_string())),
            None => Err(format!("tokenizer.ggml.{key} is {id}, but there are {} tokens", self.tokens.len())),
        }
    }

    pub fn config(&self) -> Result<Config> {
        Ok(Config {
            bos: self.token("bos_token_id", self.bos)?,
            eos: self.token("eos_token_id", self.eos)?,
            unk: self.token("unknown_token_id", self.unk)?,
            pad: self.token("padding_token_id", self.pad)?,
            templates: self
                .chat_template
                .map(|source| ("default".to_string(), source.to_string()))
                .into_iter()
                .collect(),
        })
    }

    /// Text to id; where a text occurs twice the first id has it, and the others are found by id only.
    fn ids(&self) -> (Vocab, HashMap<u32, String>) {
        let mut ids = Vocab::default();
        ids.reserve(self.tokens.len());
        let mut repeated = HashMap::new();
        for (id, token) in self.tokens.iter().enumerate() {
            match ids.entry(self.text(id)) {
                Entry::Vacant(free) => {
                    free.insert(id as u32);
                }
                Entry::Occupied(_) => {
                    repeated.insert(id as u32, token.to_string());
                }
            }
        }
        (ids, repeated)
    }

    fn prefix(&self) -> bool {
        self.model == "llama" && self.add_space_prefix.unwrap_or(true)
    }

    fn added_tokens(&self) -> Vec<AddedToken> {
        // SentencePiece looks for user-defined pieces after it has spelt spaces as "▁". With a prefix the normaliser would
        // put one before the piece itself, so there they are looked for in the text as it was written.
        let normalized = |id: usize| self.model == "llama" && self.kind(id) == USER_DEFINED && !self.prefix();
        (0..self.tokens.len())
            .filter(|&id| matches!(self.kind(id), UNKNOWN | CONTROL | USER_DEFINED))
            .map(|id| AddedToken::from(self.text(id), self.kind(id) != USER_DEFINED).normalized(normalized(id)))
            .collect()
    }

    /// What is put around a text, as a tokenizer.json's post-processor.
    fn post_processor(&self, add_bos: bool, add_eos: bool) -> Result<Option<Value>> {
        let end = |add: bool, key: &str, id: Option<u32>| match (add, id) {
            (false, _) => Ok(None),
            (true, None) => Err(format!("a token is to be added to each text, but tokenizer.ggml.{key} is missing")),
            (true, Some(id)) => Ok(self.token(key, Some(id))?.map(|token| (token, id))),
        };
        let bos = end(self.add_bos.unwrap_or(add_bos && self.bos.is_some()), "bos_token_id", self.bos)?;
        let eos = end(self.add_eos.unwrap_or(add_eos && self.eos.is_some()), "eos_token_id", self.eos)?;
        if bos.is_none() && eos.is_none() {
            return Ok(None);
        }
        let special = |pair: &Option<(String, u32)>| {
            pair.iter().map(|(token, _)| json!({"SpecialToken": {"id": token, "type_id": 0}})).collect::<Vec<_>>()
        };
        let around = |sequence: &str| {
            let mut steps = special(&bos);
            steps.push(json!({"Sequence": {"id": sequence, "type_id": 0}}));
            steps.extend(special(&eos));
            steps
        };
        let tokens: serde_json::Map<String, Value> = [&bos, &eos]
            .into_iter()
            .flatten()
            .map(|(token, id)| (token.clone(), json!({"id": token, "ids": [id], "tokens": [token]})))
            .collect();
        let pair = [around("A"), around("B")].concat();
        Ok(Some(json!({"type": "TemplateProcessing", "single": around("A"), "pair": pair, "special_tokens": tokens})))
    }

    pub fn build(&self) -> Result<Inner> {
        if self.tokens.is_empty() {
            return Err("tokenizer.ggml.tokens is missing or empty".into());
        }
        if !self.types.is_empty() && self.types.len() != self.tokens.len() {
            return Err(format!(
                "tokenizer.ggml.token_type has {} entries for {} tokens",
                self.types.len(),
                self.tokens.len()
            ));
        }
        let (builder, added) = match self.model {
            "gpt2" => (self.byte_level()?, self.added_tokens()),
            "llama" => (self.sentence_piece()?, self.added_tokens()),
            other => {
                return Err(format!("tokenizer.ggml.model is \"{other}\", which is not supported (known: gpt2, llama)"))
            }
        };
        let mut tokenizer = builder.build().map_err(|e| e.to_string())?;
        tokenizer.add_tokens(added).map_err(|e| e.to_string())?;
        Ok(tokenizer)
    }

    /// Byte-level BPE, as GPT-2 began it.
    fn byte_level(&self) -> Result<Builder> {
        let name = self.pre.ok_or("tokenizer.ggml.pre is missing: how texts are split is not known")?;
        let pre = pre::find(name)?;
        let (ids, repeated) = self.ids();
        let mut merges = Vec::with_capacity(self.merges.len());
        let mut merged = String::new();
        for (rank, merge) in self.merges.iter().enumerate() {
            // A token is never empty, so a space at the very beginning belongs to the left one.
            let split = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
            let Some(split) = split else {
                return Err(format!("tokenizer.ggml.merges[{rank}], \"{merge}\", is not two tokens"));
            };
            let (left, right) = (&merge[..split], &merge[split + 1..]);
            merged.clear();
            merged.push_str(left);
            merged.push_str(right);
            if let Some(missing) = [left, right, &merged].into_iter().find(|token| !ids.contains_key(*token)) {
                return Err(format!("tokenizer.ggml.merges[{rank}], \"{merge}\": \"{missing}\" is no token"));
            }
            merges.push((left.to_string(), right.to_string()));
        }
        let bpe = BpeBuilder::new().vocab_and_merges(ids, merges).ignore_merges(pre.ignore_merges).build();
        let bpe = bpe.map_err(|e| format!("tokenizer.ggml.merges: {e}"))?;
        let nfc = if pre.nfc { parse(json!({"type": "NFC"}))? } else { None };
        let post = self.post_processor(pre.add_bos, false)?.map(parse).transpose()?.flatten();
        Ok(TokenizerBuilder::new()
            .with_model(SharedModel::new(ModelWrapper::BPE(bpe), repeated))
            .with_normalizer(nfc)
            .with_pre_tokenizer(parse(pre.to_json())?)
            .with_post_processor(post)
            .with_decoder(parse(
                json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}),
            )?))
    }

    /// SentencePiece BPE: pieces have scores in place of merges, and the merge that makes the piece with the highest
    /// score comes first (Kudo and Richardson 2018, arXiv:1808.06226).
    fn sentence_piece(&self) -> Result<Builder> {
        if self.scores.len() != self.tokens.len() {
            return Err(format!(
                "tokenizer.ggml.scores has {} entries for {} tokens",
                self.scores.len(),
                self.tokens.len()
            ));
        }
        if let Some(id) = self.scores.iter().position(|score| score.is_nan()) {
            return Err(format!("tokenizer.ggml.scores[{id}] is not a number"));
        }
        let (ids, repeated) = self.ids();
        let part = |text: &str| {
            let id = *ids.get(text)?;
            matches!(self.kind(id as usize), NORMAL | USER_DEFINED | UNUSED).then_some(id)
        };
        let mut merges: Vec<(f32, u32, u32)> = Vec::with_capacity(self.tokens.len() * 2);
        for (id, piece) in self.tokens.iter().enumerate().filter(|(id, _)| self.kind(*id) == NORMAL) {
            for (at, _) in piece.char_indices().skip(1) {
                if let (Some(left), Some(right)) = (part(&piece[..at]), part(&piece[at..])) {
                    merges.push((self.scores[id], left, right));
                }
            }
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        let merges = merges.into_iter().map(|(_, a, b)| (self.text(a as usize), self.text(b as usize))).collect();
        let unk = self.unk.or_else(|| (0..self.tokens.len()).find(|&id| self.kind(id) == UNKNOWN).map(|id| id as u32));
        let mut bpe = BpeBuilder::new().byte_fallback(self.types.contains(&BYTE)).fuse_unk(true);
        if let Some(token) = self.token("unknown_token_id", unk)? {
            bpe = bpe.unk_token(token);
        }
        let bpe = bpe.vocab_and_merges(ids, merges).build().map_err(|e| format!("tokenizer.ggml.tokens: {e}"))?;
        let prefix = self.prefix();
        let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let normalizer = match prefix {
            true => json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]}),
            false => spaces,
        };
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prefix {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let post = self.post_processor(true, false)?.map(parse).transpose()?.flatten();
        Ok(TokenizerBuilder::new()
            .with_model(SharedModel::new(ModelWrapper::BPE(bpe), repeated))
            .with_normalizer(parse(normalizer)?)
            .with_post_processor(post)
            .with_decoder(parse(json!({"type": "Sequence", "decoders": decoders}))?))
    }
}

type Builder = TokenizerBuilder<
    SharedModel,
    tokenizers::NormalizerWrapper,
    tokenizers::PreTokenizerWrapper,
    tokenizers::PostProcessorWrapper,
    tokenizers::DecoderWrapper,
>;
