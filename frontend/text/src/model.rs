//! The tokenizer's model, shared: a tokenizer that reads special tokens in a text and one that takes them as plain text
//! differ by a flag that the library keeps inside, so there are two of them over one set of tables.

use serde::de::{Deserialize, Deserializer, Error};
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::models::bpe::BPE;
use tokenizers::models::{ModelWrapper, TrainerWrapper};
use tokenizers::{Model, Token};

#[derive(Clone)]
pub struct SharedModel(Arc<Tables>);

struct Tables {
    model: ModelWrapper,
    /// Tokens whose text another id already has: found by id only.
    repeated: HashMap<u32, String>,
}

impl SharedModel {
    pub fn new(model: ModelWrapper, repeated: HashMap<u32, String>) -> Self {
        SharedModel(Arc::new(Tables { model, repeated }))
    }
}

impl Model for SharedModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, sequence: &str) -> tokenizers::Result<Vec<Token>> {
        self.0.model.tokenize(sequence)
    }
    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.model.token_to_id(token)
    }
    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.model.id_to_token(id).or_else(|| self.0.repeated.get(&id).cloned())
    }
    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.model.get_vocab()
    }
    fn get_vocab_size(&self) -> usize {
        self.0.model.get_vocab_size() + self.0.repeated.len()
    }
    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        self.0.model.save(folder, prefix)
    }
    fn get_trainer(&self) -> TrainerWrapper {
        self.0.model.get_trainer()
    }
}

impl<'de> Deserialize<'de> for SharedModel {
    /// BPE is parsed straight from the text; the library's own way goes through a tree of JSON values, which takes three
    /// times as long for a large vocabulary. Other models take that way.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        struct Kind {
            r#type: Option<String>,
        }
        let raw = <&RawValue>::deserialize(deserializer)?;
        let kind: Kind = serde_json::from_str(raw.get()).map_err(D::Error::custom)?;
        let model = if kind.r#type.as_deref() == Some("BPE") {
            let mut bpe: BPE = serde_json::from_str(raw.get()).map_err(D::Error::custom)?;
            // Dropout is for training: here the same text must always give the same ids.
            bpe.dropout = None;
            ModelWrapper::BPE(bpe)
        } else {
            let mut model: ModelWrapper = serde_json::from_str(raw.get()).map_err(D::Error::custom)?;
            if let ModelWrapper::BPE(bpe) = &mut model {
                bpe.dropout = None;
            }
            model
        };
        Ok(SharedModel::new(model, HashMap::new()))
    }
}
