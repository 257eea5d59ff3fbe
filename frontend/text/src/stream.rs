//! Decoding one token at a time: a character is given as soon as the token with its last byte has come. Bytes that can
//! not begin or go on a character become U+FFFD, one for each maximal invalid part (Unicode 15, section 3.9).

use serde_json::Value;
use std::collections::HashMap;
use std::sync::OnceLock;
use tokenizers::DecoderWrapper;

/// How the tokens' spelling becomes bytes, read off the tokenizer's decoder.
#[derive(Default, Debug)]
pub struct Rule {
    byte_level: bool,
    byte_fallback: bool,
    replace: Vec<(String, String)>,
    /// The sign that stands for a space, and whether the first token loses it.
    metaspace: Option<(char, bool)>,
    /// So many of this character are dropped at the beginning of the text.
    strip: Option<(char, usize)>,
    /// Without a decoder tokens are words.
    spaced: bool,
    fused: bool,
}

/// GPT-2's spelling of bytes: printable Latin-1 is itself, the rest is U+0100 and on, in order.
fn byte_of(c: char) -> Option<u8> {
    static TABLE: OnceLock<HashMap<char, u8>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut next = 256u32;
        (0..=255u8)
            .filter_map(|byte| {
                let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
                let code = if printable {
                    u32::from(byte)
                } else {
                    next += 1;
                    next - 1
                };
                char::from_u32(code).map(|c| (c, byte))
            })
            .collect()
    });
    table.get(&c).copied()
}

impl Rule {
    pub fn of(decoder: Option<&DecoderWrapper>) -> Result<Rule, String> {
        let mut rule = Rule::default();
        match decoder {
            None => rule.spaced = true,
            Some(decoder) => {
                let json = serde_json::to_value(decoder).map_err(|e| e.to_string())?;
                rule.add(&json)?;
            }
        }
        Ok(rule)
    }

    fn add(&mut self, step: &Value) -> Result<(), String> {
        let text = |key: &str| step.get(key).and_then(Value::as_str).unwrap_or_default();
        let count = |key: &str| step.get(key).and_then(Value::as_u64).unwrap_or(0) as usize;
        match text("type") {
            "Sequence" => {
                for inner in step.get("decoders").and_then(Value::as_array).into_iter().flatten() {
                    self.add(inner)?;
                }
            }
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => self.fused = true,
            "Replace" => match step.pointer("/pattern/String").and_then(Value::as_str) {
                Some(pattern) if !pattern.is_empty() => self.replace.push((pattern.into(), text("content").into())),
                _ => return Err("a Replace decoder with a regular expression is not supported".into()),
            },
            "Metaspace" => {
                let sign = text("replacement").chars().next().unwrap_or('▁');
                self.metaspace = Some((sign, text("prepend_scheme") != "never"));
            }
            "Strip" if self.fused && count("stop") == 0 => {
                self.strip = text("content").chars().next().map(|c| (c, count("start")));
            }
            "Strip" => return Err("a Strip decoder is supported after Fuse and at the beginning only".into()),
            other => {
                return Err(format!(
                "decoder \"{other}\" is not supported (known: ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip)"
            ))
            }
        }
        Ok(())
    }

    /// The bytes that a token stands for, in the middle of a text.
    pub fn bytes(&self, token: &str) -> Vec<u8> {
        self.bytes_at(token, false)
    }

    fn bytes_at(&self, token: &str, first: bool) -> Vec<u8> {
        if self.byte_level {
            let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
            return bytes.unwrap_or_else(|| token.as_bytes().to_vec());
        }
        if self.byte_fallback && token.len() == 6 && token.starts_with("<0x") && token.ends_with('>') {
            if let Some(byte) = token.get(3..5).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                return vec![byte];
            }
        }
        let mut text = token.to_string();
        for (pattern, content) in &self.replace {
            text = text.replace(pattern.as_str(), content);
        }
        if let Some((sign, drop_first)) = self.metaspace {
            text = text.replace(sign, if first && drop_first { "" } else { " " });
        }
        text.into_bytes()
    }
}

#[derive(Default)]
pub struct State {
    /// The beginning of a character whose rest is still to come.
    pending: Vec<u8>,
    started: bool,
    stripped: usize,
    past_strip: bool,
}

impl State {
    /// Takes one token's spelling and gives the characters that it completes.
    pub fn push(&mut self, rule: &Rule, token: &str) -> String {
        if rule.spaced && self.started {
            self.pending.push(b' ');
        }
        let bytes = rule.bytes_at(token, !self.started);
        self.pending.extend(bytes);
        self.started = true;
        let mut out = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    out.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    match error.error_len() {
                        Some(length) => {
                            out.push('\u{fffd}');
                            rest = &after[length..];
                        }
                        None => {
                            rest = after;
                            break;
                        }
                    }
                }
            }
        }
        self.pending = rest.to_vec();
        self.strip(rule, out)
    }

    /// What is left at the end: U+FFFD for a character that was cut off.
    pub fn finish(&mut self, rule: &Rule) -> String {
        let cut = !std::mem::take(&mut self.pending).is_empty();
        let out = self.strip(rule, if cut { "\u{fffd}".into() } else { String::new() });
        *self = State::default();
        out
    }

    fn strip(&mut self, rule: &Rule, mut out: String) -> String {
        let Some((c, limit)) = rule.strip else { return out };
        while !self.past_strip && !out.is_empty() {
            if self.stripped < limit && out.starts_with(c) {
                out.remove(0);
                self.stripped += 1;
            } else {
                self.past_strip = true;
            }
        }
        out
    }
}
