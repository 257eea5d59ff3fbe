//! Chat templates: Jinja2 as transformers sets it up, over minijinja.

use crate::bounds;
use crate::failure::{Failure, Kind, Result};
use crate::python;
use crate::source;
use crate::strftime::strftime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{escape_formatter, AutoEscape, Environment, Error, ErrorKind, Output, State};
use serde_json::{json, Map, Value as Json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Steps a rendering may take; about one a template instruction and one for 64 bytes made, so this also bounds memory
/// (640 MB). A dialogue of a thousand messages takes about a hundred thousand.
const FUEL: u64 = 10_000_000;
/// A prompt for a million tokens takes a quarter of it.
const MAX_OUTPUT_BYTES: usize = 16 << 20;
const NAME: &str = "chat_template";

pub struct ChatTemplate {
    env: Environment<'static>,
    /// `bos_token` and the like, each only where the tokenizer has one.
    tokens: Vec<(String, String)>,
}

/// One rendering.
pub struct Request<'a> {
    pub messages: &'a Json,
    pub tools: Option<&'a Json>,
    pub kwargs: Option<&'a Json>,
    pub add_generation_prompt: bool,
    /// Wall-clock time in seconds since 1970-01-01 00:00 of that clock.
    pub now: i64,
}

/// What a rendering writes to; refuses more than the limit.
struct Prompt {
    bytes: Vec<u8>,
    full: bool,
}

impl std::io::Write for Prompt {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT_BYTES {
            self.full = true;
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn print(out: &mut Output, state: &mut State, value: &Value) -> std::result::Result<(), Error> {
    let plain = matches!(state.auto_escape(), AutoEscape::None);
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map if plain && value.as_str().is_none() => {
            out.write_str(&python::to_str(state, value)?).map_err(|_| Error::from(ErrorKind::WriteFailure))
        }
        _ => {
            bounds::check(state, value)?;
            escape_formatter(out, state, value)
        }
    }
}

/// The line and what is wrong, on one line of text.
fn describe(error: &Error) -> String {
    let mut message = String::from("chat template");
    if let Some(line) = error.line() {
        message += &format!(", line {line}");
    }
    message += &format!(": {}", error.kind());
    if let Some(detail) = error.detail() {
        message += &format!(": {detail}");
    }
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        message += &format!("; {}", cause.to_string().replace(&format!(" (in {NAME}:"), " (line "));
        source = cause.source();
    }
    message.replace('\n', " ")
}

fn failure(error: Error) -> Failure {
    let mut kind = error.kind();
    let mut detail = error.detail().unwrap_or_default().to_string();
    // An error within a macro or block is the cause, not the call.
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        if let Some(inner) = cause.downcast_ref::<Error>() {
            kind = inner.kind();
            detail = inner.detail().unwrap_or_default().to_string();
        }
        source = cause.source();
    }
    let kind = match kind {
        ErrorKind::SyntaxError
        | ErrorKind::BadEscape
        | ErrorKind::TemplateNotFound
        | ErrorKind::UnknownFilter
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownMethod
        | ErrorKind::UnknownBlock
        | ErrorKind::UndefinedError => Kind::Template,
        // Jinja2 has an undefined operand as an error of its own kind.
        ErrorKind::InvalidOperation if detail.contains("unsupported types") && detail.contains("undefined") => {
            Kind::Template
        }
        _ => Kind::Render,
    };
    Failure { kind, message: describe(&error) }
}

/// Messages as transformers hands them on: keys that are null are dropped, and the names for reasoning are aliases.
fn prepare(messages: &Json) -> Json {
    let Json::Array(list) = messages else { return messages.clone() };
    let prepared = list.iter().map(|message| {
        let Json::Object(fields) = message else { return message.clone() };
        let mut fields: Map<String, Json> =
            fields.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
        let reasoning = ["reasoning_content", "thinking", "reasoning"].iter().find_map(|key| fields.get(*key)).cloned();
        if let Some(reasoning) = reasoning {
            fields.insert("reasoning_content".into(), reasoning.clone());
            fields.entry("thinking").or_insert(reasoning);
        }
        Json::Object(fields)
    });
    Json::Array(prepared.collect())
}

fn to_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Value::from(n),
            (None, Some(n)) => Value::from(n),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(to_value).collect::<Vec<_>>()),
        Json::Object(fields) => Value::from_pairs(fields.iter().map(|(k, v)| (k.as_str(), to_value(v)))),
    }
}

impl ChatTemplate {
    /// Compiles `source`.
    pub fn new(source: &str, tokens: Vec<(String, String)>) -> Result<ChatTemplate> {
        bounds::on_deep_stack(|| ChatTemplate::compile(source, tokens))
    }

    fn compile(source: &str, tokens: Vec<(String, String)>) -> Result<ChatTemplate> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failure)?;
        env.set_syntax(syntax);
        env.set_debug(true);
        env.set_fuel(Some(FUEL));
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_unknown_method_callback(bounds::method);
        env.set_formatter(print);
        env.add_filter("tojson", python::tojson);
        env.add_filter("string", |state: &State, value: &Value| match value.is_safe() || value.is_undefined() {
            true => Ok(value.clone()),
            false => python::to_str(state, value).map(Value::from),
        });
        bounds::install(&mut env);
        env.add_template_owned(NAME, source::prepare(source)?).map_err(failure)?;
        Ok(ChatTemplate { env, tokens })
    }

    /// Renders short dialogues: a template that fails on all of them is refused, unless it refuses them itself by
    /// `raise_exception`. The failure is that of the shortest dialogue.
    fn probe(&self, tools: Option<&Json>) -> Result<()> {
        let user = json!({"role": "user", "content": "Hello"});
        let assistant = json!({"role": "assistant", "content": "Hello."});
        let system = json!({"role": "system", "content": "Be brief."});
        let parts = json!({"role": "user", "content": [{"type": "text", "text": "Hello"}]});
        let dialogues =
            [json!([user]), json!([user, assistant, user]), json!([system, user, assistant, user]), json!([parts])];
        let mut first = None;
        for messages in &dialogues {
            let request = Request { messages, tools, kwargs: None, add_generation_prompt: true, now: 0 };
            match self.render(&request) {
                Ok(_) => return Ok(()),
                Err(Failure { kind: Kind::Raised, .. }) => return Ok(()),
                Err(failure) => first = first.or(Some(failure)),
            }
        }
        first.map_or(Ok(()), Err)
    }

    pub fn render(&self, request: &Request) -> Result<String> {
        bounds::on_deep_stack(|| self.render_here(request))
    }

    fn render_here(&self, request: &Request) -> Result<String> {
        let raised = Arc::new(Mutex::new(None));
        let mut context: BTreeMap<String, Value> = BTreeMap::new();
        for (name, text) in &self.tokens {
            context.insert(name.clone(), Value::from(text.as_str()));
        }
        context.insert("messages".into(), to_value(&prepare(request.messages)));
        context.insert("tools".into(), request.tools.map_or(Value::from(()), to_value));
        context.insert("documents".into(), Value::from(()));
        context.insert("add_generation_prompt".into(), Value::from(request.add_generation_prompt));
        let raise = {
            let raised = raised.clone();
            move |state: &State, message: &Value| -> std::result::Result<Value, Error> {
                let message = python::to_str(state, message)?;
                if let Ok(mut slot) = raised.lock() {
                    *slot = Some(message.clone());
                }
                Err(Error::new(ErrorKind::InvalidOperation, message))
            }
        };
        context.insert("raise_exception".into(), Value::from_function(raise));
        let now = request.now;
        context.insert("strftime_now".into(), Value::from_function(move |format: &str| strftime(format, now)));
        match request.kwargs {
            None | Some(Json::Null) => {}
            Some(Json::Object(variables)) => {
                for (name, value) in variables {
                    context.insert(name.clone(), to_value(value));
                }
            }
            Some(_) => {
                return Err(Failure { kind: Kind::Invalid, message: "template variables must be a JSON object".into() })
            }
        }
        let template = self.env.get_template(NAME).map_err(failure)?;
        let mut prompt = Prompt { bytes: vec![], full: false };
        let result = template.render_captured_to(Value::from_pairs(context), &mut prompt).map(|_| ());
        if prompt.full {
            let message = format!("chat template: the prompt would have more than {MAX_OUTPUT_BYTES} bytes");
            return Err(Failure { kind: Kind::Render, message });
        }
        result.map_err(|error| match raised.lock().ok().and_then(|mut slot| slot.take()) {
            Some(message) => Failure { kind: Kind::Raised, message },
            None => failure(error),
        })?;
        String::from_utf8(prompt.bytes).map_err(|e| Failure { kind: Kind::Internal, message: e.to_string() })
    }
}

/// The templates of a model: one, or several by name.
pub struct ChatTemplates {
    default: ChatTemplate,
    /// Taken instead where tools are given.
    tool_use: Option<ChatTemplate>,
}

impl ChatTemplates {
    pub fn new(named: &[(String, String)], tokens: &[(String, String)]) -> Result<ChatTemplates> {
        let find = |name: &str| named.iter().find(|(n, _)| n == name).map(|(_, source)| source);
        let only = if named.len() == 1 { named.first().map(|(_, source)| source) } else { None };
        let Some(default) = find("default").or(only) else {
            let names: Vec<&str> = named.iter().map(|(n, _)| n.as_str()).collect();
            let message = format!("chat_template has no template named \"default\" (it has: {})", names.join(", "));
            return Err(Failure { kind: Kind::Invalid, message });
        };
        let default = ChatTemplate::new(default, tokens.to_vec())?;
        default.probe(None)?;
        let tool_use = find("tool_use").map(|source| ChatTemplate::new(source, tokens.to_vec())).transpose()?;
        if let Some(template) = &tool_use {
            template.probe(Some(&json!([{"type": "function", "function": {"name": "f", "description": "",
                "parameters": {"type": "object", "properties": {}}}}])))?;
        }
        Ok(ChatTemplates { default, tool_use })
    }

    pub fn render(&self, request: &Request) -> Result<String> {
        match &self.tool_use {
            Some(template) if request.tools.is_some() => template.render(request),
            _ => self.default.render(request),
        }
    }
}
