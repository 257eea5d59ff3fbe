//! A tokenizer with its special tokens and chat templates.

use crate::alloc;
use crate::chat::ChatTemplates;
use crate::failure::{invalid, Failure, Kind, Result};
use crate::gguf::Vocabulary;
use crate::model::SharedModel;
use crate::special::{end_ids, Config};
use crate::stream::Rule;
use tokenizers::{DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl};

pub type Inner =
    TokenizerImpl<SharedModel, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

pub struct Tokenizer {
    /// Special tokens written in a text are read as such.
    reading_specials: Inner,
    /// They are plain text.
    plain: Inner,
    pub rule: Rule,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub pad: Option<u32>,
    pub end_ids: Vec<u32>,
    pub chat: Option<ChatTemplates>,
    pub memory_bytes: usize,
}

impl Tokenizer {
    /// `jinja` is the file chat_template.jinja; it takes the place of the template in `config`.
    pub fn from_json(json: &[u8], config: Option<&[u8]>, jinja: Option<&[u8]>) -> Result<Tokenizer> {
        let before = alloc::held();
        let inner: Inner = match serde_json::from_slice(json) {
            Ok(inner) => inner,
            Err(error) => return invalid(format!("tokenizer.json: {error}").replace('\n', " ")),
        };
        let mut config = match config {
            Some(json) => Config::parse(json).or_else(invalid)?,
            None => Config::default(),
        };
        if let Some(source) = jinja {
            let source = std::str::from_utf8(source).or_else(|e| invalid(format!("chat_template.jinja: {e}")))?;
            config.templates = vec![("default".into(), source.into())];
        }
        Tokenizer::new(inner, config, before)
    }

    pub fn from_gguf(vocabulary: &Vocabulary) -> Result<Tokenizer> {
        let before = alloc::held();
        let inner = vocabulary.build().or_else(invalid)?;
        let mut tokenizer = Tokenizer::new(inner, vocabulary.config().or_else(invalid)?, before)?;
        // By id, for a text may occur twice.
        (tokenizer.bos, tokenizer.eos) = (vocabulary.bos, vocabulary.eos);
        (tokenizer.unk, tokenizer.pad) = (vocabulary.unk, vocabulary.pad);
        Ok(tokenizer)
    }

    fn new(mut inner: Inner, config: Config, held_before: isize) -> Result<Tokenizer> {
        // Both are for training: a prompt is never cut short or filled up here.
        inner.with_truncation(None).or_else(|e| invalid(e.to_string()))?;
        inner.with_padding(None);
        inner.set_encode_special_tokens(false);
        let rule = Rule::of(inner.get_decoder()).or_else(|e| invalid(format!("tokenizer.json: {e}")))?;
        let mut plain = inner.clone();
        plain.set_encode_special_tokens(true);
        let chat = match config.templates.is_empty() {
            true => None,
            false => Some(ChatTemplates::new(&config.templates, &config.variables())?),
        };
        let id = |token: &Option<String>| token.as_ref().and_then(|t| inner.token_to_id(t));
        let (bos, eos, unk, pad) = (id(&config.bos), id(&config.eos), id(&config.unk), id(&config.pad));
        let specials = inner.get_added_vocabulary();
        let end_ids = end_ids(eos, |text| specials.is_special_token(text).then(|| inner.token_to_id(text)).flatten());
        let memory_bytes = (alloc::held() - held_before).max(0) as usize;
        Ok(Tokenizer { plain, rule, bos, eos, unk, pad, end_ids, chat, memory_bytes, reading_specials: inner })
    }

    pub fn encode(&self, text: &[u8], add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let text = std::str::from_utf8(text).or_else(|e| invalid(format!("the text is not UTF-8: {e}")))?;
        let inner = if parse_special { &self.reading_specials } else { &self.plain };
        let encoding = inner.encode_fast(text, add_special).or_else(|e| invalid(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.reading_specials
            .decode(ids, skip_special)
            .map_err(|e| Failure { kind: Kind::Invalid, message: e.to_string() })
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.reading_specials.token_to_id(token)
    }

    /// A token's spelling in the vocabulary.
    pub fn spelling(&self, id: u32) -> Option<String> {
        // The added tokens' normalised form is what decoders are made for.
        self.reading_specials
            .get_added_vocabulary()
            .simple_id_to_token(id)
            .or_else(|| self.reading_specials.id_to_token(id))
    }

    pub fn is_special(&self, id: u32) -> bool {
        self.reading_specials.get_added_vocabulary().get_added_tokens_decoder().get(&id).is_some_and(|t| t.special)
    }

    pub fn vocab_size(&self) -> usize {
        self.reading_specials.get_vocab_size(true)
    }
}
