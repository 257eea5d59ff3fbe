//! The C interface; xjit_text.h documents it. Every function that can fail runs under the guard.

use crate::chat::{ChatTemplate, Request};
use crate::failure::{guard, invalid, Failure, Kind, Result};
use crate::gguf::Vocabulary;
use crate::stream;
use crate::tokenizer::Tokenizer;
use serde_json::Value as Json;
use std::sync::Arc;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    data: *const u8,
    size: usize,
}

#[repr(C)]
pub struct Buffer {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

#[repr(C)]
pub struct Ids {
    data: *mut u32,
    size: usize,
    capacity: usize,
}

#[repr(C)]
pub struct GgufVocabulary {
    model: Bytes,
    pre: Bytes,
    chat_template: Bytes,
    tokens: *const Bytes,
    token_count: usize,
    scores: *const f32,
    score_count: usize,
    types: *const i32,
    type_count: usize,
    merges: *const Bytes,
    merge_count: usize,
    bos: i64,
    eos: i64,
    unk: i64,
    pad: i64,
    add_bos: i32,
    add_eos: i32,
    add_space_prefix: i32,
}

#[repr(C)]
pub struct SpecialTokens {
    bos: Bytes,
    eos: Bytes,
    unk: Bytes,
    pad: Bytes,
}

#[repr(C)]
pub struct RenderRequest {
    messages: Bytes,
    tools: Bytes,
    kwargs: Bytes,
    add_generation_prompt: bool,
    now: i64,
}

#[repr(C)]
pub struct TokenIds {
    bos: i64,
    eos: i64,
    unk: i64,
    pad: i64,
}

pub struct Stream {
    tokenizer: Arc<Tokenizer>,
    state: stream::State,
    skip_special: bool,
}

/// # Safety
/// `data` points to `count` values that live as long as the slice, or is null.
unsafe fn slice<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if data.is_null() || count == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, count)
    }
}

impl Bytes {
    /// # Safety
    /// As for `slice`.
    unsafe fn get<'a>(self) -> &'a [u8] {
        slice(self.data, self.size)
    }
    unsafe fn optional<'a>(self) -> Option<&'a [u8]> {
        if self.data.is_null() {
            None
        } else {
            Some(self.get())
        }
    }
    unsafe fn text<'a>(self, what: &str) -> Result<&'a str> {
        std::str::from_utf8(self.get()).or_else(|_| invalid(format!("{what} is not UTF-8")))
    }
    unsafe fn optional_text<'a>(self, what: &str) -> Result<Option<&'a str>> {
        if self.data.is_null() {
            Ok(None)
        } else {
            self.text(what).map(Some)
        }
    }
    unsafe fn json(self, what: &str) -> Result<Option<Json>> {
        match self.optional() {
            None => Ok(None),
            Some(bytes) => match serde_json::from_slice(bytes) {
                Ok(Json::Null) => Ok(None),
                Ok(value) => Ok(Some(value)),
                Err(error) => invalid(format!("{what}: {error}")),
            },
        }
    }
}

unsafe fn set_buffer(out: *mut Buffer, bytes: Vec<u8>) {
    let mut bytes = std::mem::ManuallyDrop::new(bytes);
    *out = Buffer { data: bytes.as_mut_ptr(), size: bytes.len(), capacity: bytes.capacity() };
}

unsafe fn set_ids(out: *mut Ids, ids: Vec<u32>) {
    let mut ids = std::mem::ManuallyDrop::new(ids);
    *out = Ids { data: ids.as_mut_ptr(), size: ids.len(), capacity: ids.capacity() };
}

/// Runs `f`; 0, or the failure's number with its message in `message`.
unsafe fn status(message: *mut Buffer, f: impl FnOnce() -> Result<()>) -> i32 {
    match guard(f) {
        Ok(()) => 0,
        Err(failure) => {
            set_buffer(message, failure.message.into_bytes());
            failure.kind.status()
        }
    }
}

/// A panic while a file is read is the file's fault as far as its user is concerned.
fn loading<T>(what: &str, result: Result<T>) -> Result<T> {
    result.map_err(|failure| match failure.kind {
        Kind::Internal => {
            Failure { kind: Kind::Invalid, message: format!("{what} is not usable: {}", failure.message) }
        }
        _ => failure,
    })
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_buffer_free(buffer: *mut Buffer) {
    let Buffer { data, size, capacity } =
        std::mem::replace(&mut *buffer, Buffer { data: std::ptr::null_mut(), size: 0, capacity: 0 });
    if !data.is_null() {
        drop(Vec::from_raw_parts(data, size, capacity));
    }
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_ids_free(ids: *mut Ids) {
    let Ids { data, size, capacity } =
        std::mem::replace(&mut *ids, Ids { data: std::ptr::null_mut(), size: 0, capacity: 0 });
    if !data.is_null() {
        drop(Vec::from_raw_parts(data, size, capacity));
    }
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_tokenizer_from_json(
    json: Bytes,
    config: Bytes,
    jinja: Bytes,
    out: *mut *const Tokenizer,
    message: *mut Buffer,
) -> i32 {
    status(message, || {
        let result = guard(|| Tokenizer::from_json(json.get(), config.optional(), jinja.optional()));
        *out = Arc::into_raw(Arc::new(loading("tokenizer.json", result)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_tokenizer_from_gguf(
    gguf: *const GgufVocabulary,
    out: *mut *const Tokenizer,
    message: *mut Buffer,
) -> i32 {
    status(message, || {
        let gguf = &*gguf;
        let texts = |what: &str, data: *const Bytes, count: usize| {
            let entries = slice(data, count).iter().enumerate();
            entries
                .map(|(i, bytes)| {
                    std::str::from_utf8(bytes.get()).or_else(|_| invalid(format!("{what}[{i}] is not UTF-8")))
                })
                .collect::<Result<Vec<&str>>>()
        };
        let flag = |value: i32| (value >= 0).then_some(value != 0);
        let id = |value: i64, key: &str| match u32::try_from(value) {
            Ok(id) => Ok(Some(id)),
            Err(_) if value < 0 => Ok(None),
            Err(_) => invalid(format!("tokenizer.ggml.{key} is {value}, which is no token id")),
        };
        let vocabulary = Vocabulary {
            model: gguf.model.text("tokenizer.ggml.model")?,
            pre: gguf.pre.optional_text("tokenizer.ggml.pre")?,
            tokens: texts("tokenizer.ggml.tokens", gguf.tokens, gguf.token_count)?,
            scores: slice(gguf.scores, gguf.score_count),
            types: slice(gguf.types, gguf.type_count),
            merges: texts("tokenizer.ggml.merges", gguf.merges, gguf.merge_count)?,
            bos: id(gguf.bos, "bos_token_id")?,
            eos: id(gguf.eos, "eos_token_id")?,
            unk: id(gguf.unk, "unknown_token_id")?,
            pad: id(gguf.pad, "padding_token_id")?,
            add_bos: flag(gguf.add_bos),
            add_eos: flag(gguf.add_eos),
            add_space_prefix: flag(gguf.add_space_prefix),
            chat_template: gguf.chat_template.optional_text("tokenizer.chat_template")?,
        };
        let tokenizer = loading("the GGUF vocabulary", guard(|| Tokenizer::from_gguf(&vocabulary)))?;
        *out = Arc::into_raw(Arc::new(tokenizer));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_tokenizer_free(tokenizer: *const Tokenizer) {
    if !tokenizer.is_null() {
        drop(Arc::from_raw(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_encode(
    tokenizer: *const Tokenizer,
    text: Bytes,
    add_special: bool,
    parse_special: bool,
    out: *mut Ids,
    message: *mut Buffer,
) -> i32 {
    status(message, || {
        set_ids(out, (*tokenizer).encode(text.get(), add_special, parse_special)?);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_decode(
    tokenizer: *const Tokenizer,
    ids: *const u32,
    count: usize,
    skip_special: bool,
    out: *mut Buffer,
    message: *mut Buffer,
) -> i32 {
    status(message, || {
        set_buffer(out, (*tokenizer).decode(slice(ids, count), skip_special)?.into_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_token_to_id(tokenizer: *const Tokenizer, token: Bytes) -> i64 {
    std::str::from_utf8(token.get()).ok().and_then(|token| (*tokenizer).token_to_id(token)).map_or(-1, i64::from)
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_token(
    tokenizer: *const Tokenizer,
    id: u32,
    spelling: bool,
    out: *mut Buffer,
) -> bool {
    let Some(token) = (*tokenizer).spelling(id) else { return false };
    set_buffer(out, if spelling { token.into_bytes() } else { (*tokenizer).rule.bytes(&token) });
    true
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_is_special(tokenizer: *const Tokenizer, id: u32) -> bool {
    (*tokenizer).is_special(id)
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_vocab_size(tokenizer: *const Tokenizer) -> usize {
    (*tokenizer).vocab_size()
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_memory_bytes(tokenizer: *const Tokenizer) -> usize {
    (*tokenizer).memory_bytes
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_token_ids(tokenizer: *const Tokenizer) -> TokenIds {
    let id = |id: Option<u32>| id.map_or(-1, i64::from);
    let t = &*tokenizer;
    TokenIds { bos: id(t.bos), eos: id(t.eos), unk: id(t.unk), pad: id(t.pad) }
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_end_ids(tokenizer: *const Tokenizer, out: *mut Ids) {
    set_ids(out, (*tokenizer).end_ids.clone());
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_has_chat_template(tokenizer: *const Tokenizer) -> bool {
    (*tokenizer).chat.is_some()
}

unsafe fn render(request: *const RenderRequest, f: impl FnOnce(&Request) -> Result<String>) -> Result<String> {
    let request = &*request;
    let messages = request.messages.json("messages")?;
    let (tools, kwargs) = (request.tools.json("tools")?, request.kwargs.json("template variables")?);
    let Some(messages @ Json::Array(_)) = &messages else { return invalid("messages must be a JSON array") };
    f(&Request {
        messages,
        tools: tools.as_ref(),
        kwargs: kwargs.as_ref(),
        add_generation_prompt: request.add_generation_prompt,
        now: request.now,
    })
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_render(
    tokenizer: *const Tokenizer,
    request: *const RenderRequest,
    out: *mut Buffer,
    message: *mut Buffer,
) -> i32 {
    status(message, || {
        let Some(chat) = &(*tokenizer).chat else { return invalid("this model has no chat template") };
        set_buffer(out, render(request, |r| chat.render(r))?.into_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_template_new(
    source: Bytes,
    tokens: *const SpecialTokens,
    out: *mut *mut ChatTemplate,
    message: *mut Buffer,
) -> i32 {
    status(message, || {
        let mut variables = vec![];
        let tokens = &*tokens;
        let named = [
            ("bos_token", tokens.bos),
            ("eos_token", tokens.eos),
            ("unk_token", tokens.unk),
            ("pad_token", tokens.pad),
        ];
        for (name, token) in named {
            if let Some(text) = token.optional_text(name)? {
                variables.push((name.to_string(), text.to_string()));
            }
        }
        let source = source.text("the chat template")?;
        let template = loading("the chat template", guard(|| ChatTemplate::new(source, variables)))?;
        *out = Box::into_raw(Box::new(template));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_template_free(template: *mut ChatTemplate) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_template_render(
    template: *const ChatTemplate,
    request: *const RenderRequest,
    out: *mut Buffer,
    message: *mut Buffer,
) -> i32 {
    status(message, || {
        set_buffer(out, render(request, |r| (*template).render(r))?.into_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_stream_new(tokenizer: *const Tokenizer, skip_special: bool) -> *mut Stream {
    Arc::increment_strong_count(tokenizer);
    let tokenizer = Arc::from_raw(tokenizer);
    Box::into_raw(Box::new(Stream { tokenizer, state: stream::State::default(), skip_special }))
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_stream_free(stream: *mut Stream) {
    if !stream.is_null() {
        drop(Box::from_raw(stream));
    }
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_stream_push(stream: *mut Stream, id: u32, out: *mut Buffer) {
    let stream = &mut *stream;
    let skipped = stream.skip_special && stream.tokenizer.is_special(id);
    let text = match stream.tokenizer.spelling(id) {
        Some(token) if !skipped => stream.state.push(&stream.tokenizer.rule, &token),
        _ => String::new(),
    };
    set_buffer(out, text.into_bytes());
}

#[no_mangle]
pub unsafe extern "C" fn xjit_text_stream_finish(stream: *mut Stream, out: *mut Buffer) {
    let stream = &mut *stream;
    set_buffer(out, stream.state.finish(&stream.tokenizer.rule).into_bytes());
}
