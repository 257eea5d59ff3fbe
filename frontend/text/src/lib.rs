//! Text for xjit: tokenizers, streaming decoding and chat templates, behind a C interface (xjit_text.h).
//!
//! The ecosystem's own libraries do the work, so that ids and prompts are those that the models were trained with;
//! this crate adds what they lack: GGUF vocabularies, decoding by bytes, and the Python behaviour that templates expect.

mod alloc;
mod bounds;
mod chat;
mod failure;
mod ffi;
mod gguf;
mod model;
mod pre;
mod python;
mod source;
mod special;
mod stream;
mod strftime;
mod tokenizer;
