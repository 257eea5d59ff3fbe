/* Tokenizers, streaming decoding and chat templates: the C interface of the Rust library in src/. C++ code uses the
 * wrapper text.h.
 *
 * Texts are UTF-8, not terminated. Functions with a status give 0, or one of xjit_text_status with a one-line message
 * in *message; nothing else is written then. A buffer or list of ids that was written is the caller's, freed with
 * xjit_text_buffer_free or xjit_text_ids_free (zeroed ones may be freed too). Tokenizers and templates may be used from
 * several threads at once, a stream from one at a time. No function prints, exits or lets a panic through. */
#ifndef XJIT_FRONTEND_TEXT_XJIT_TEXT_H_
#define XJIT_FRONTEND_TEXT_XJIT_TEXT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum xjit_text_status {
  XJIT_TEXT_OK = 0,
  XJIT_TEXT_INVALID = 1,  /* the input is not what it should be */
  XJIT_TEXT_RAISED = 2,   /* the template's own raise_exception: the message is its argument, word for word */
  XJIT_TEXT_TEMPLATE = 3, /* the template is not valid, or used what is not defined; the message has the line */
  XJIT_TEXT_RENDER = 4,   /* rendering failed: a type error, too many steps */
  XJIT_TEXT_INTERNAL = 5  /* a fault in the library below */
};

/* Borrowed. data == NULL: not given. */
typedef struct {
  const char* data;
  size_t size;
} xjit_text_bytes;

typedef struct {
  char* data;
  size_t size;
  size_t capacity;
} xjit_text_buffer;

typedef struct {
  uint32_t* data;
  size_t size;
  size_t capacity;
} xjit_text_ids;

typedef struct xjit_text_tokenizer xjit_text_tokenizer;
typedef struct xjit_text_template xjit_text_template;
typedef struct xjit_text_stream xjit_text_stream;

void xjit_text_buffer_free(xjit_text_buffer* buffer);
void xjit_text_ids_free(xjit_text_ids* ids);

/* `json` is a tokenizer.json; `config` a tokenizer_config.json (special tokens, chat_template), `jinja` a
 * chat_template.jinja, which takes the place of the former's; either may be missing. */
int xjit_text_tokenizer_from_json(xjit_text_bytes json, xjit_text_bytes config, xjit_text_bytes jinja,
                                  xjit_text_tokenizer** out, xjit_text_buffer* message);

/* The metadata tokenizer.ggml.* of a GGUF file. Ids: -1 where missing; flags: -1 missing, 0, 1. */
typedef struct {
  xjit_text_bytes model; /* "gpt2" or "llama" */
  xjit_text_bytes pre;
  xjit_text_bytes chat_template;
  const xjit_text_bytes* tokens;
  size_t token_count;
  const float* scores;
  size_t score_count;
  const int32_t* types;
  size_t type_count;
  const xjit_text_bytes* merges;
  size_t merge_count;
  int64_t bos, eos, unk, pad;
  int32_t add_bos, add_eos, add_space_prefix;
} xjit_text_gguf_vocabulary;

int xjit_text_tokenizer_from_gguf(const xjit_text_gguf_vocabulary* vocabulary, xjit_text_tokenizer** out,
                                  xjit_text_buffer* message);
void xjit_text_tokenizer_free(xjit_text_tokenizer* tokenizer);

/* add_special: what the tokenizer puts around a text (<s> and the like). parse_special: special tokens written in the
 * text are read as such; otherwise they are plain text. */
int xjit_text_encode(const xjit_text_tokenizer* tokenizer, xjit_text_bytes text, bool add_special, bool parse_special,
                     xjit_text_ids* out, xjit_text_buffer* message);
/* Ids that are no token decode to nothing. */
int xjit_text_decode(const xjit_text_tokenizer* tokenizer, const uint32_t* ids, size_t count, bool skip_special,
                     xjit_text_buffer* out, xjit_text_buffer* message);

/* -1 if there is no such token; `token` is its spelling in the vocabulary. */
int64_t xjit_text_token_to_id(const xjit_text_tokenizer* tokenizer, xjit_text_bytes token);
/* The bytes that a token stands for in the middle of a text, or its spelling in the vocabulary. False: no such id. */
bool xjit_text_token(const xjit_text_tokenizer* tokenizer, uint32_t id, bool spelling, xjit_text_buffer* out);
bool xjit_text_is_special(const xjit_text_tokenizer* tokenizer, uint32_t id);
/* Number of tokens, added ones included. */
size_t xjit_text_vocab_size(const xjit_text_tokenizer* tokenizer);
/* What the tables hold, in bytes, templates included. */
size_t xjit_text_memory_bytes(const xjit_text_tokenizer* tokenizer);

/* -1 where there is none. */
typedef struct {
  int64_t bos, eos, unk, pad;
} xjit_text_token_id_set;
xjit_text_token_id_set xjit_text_token_ids(const xjit_text_tokenizer* tokenizer);
/* The ids that end a generation: eos and the special tokens that model families use so; sorted. */
void xjit_text_end_ids(const xjit_text_tokenizer* tokenizer, xjit_text_ids* out);

/* Decodes one token at a time. A character is given as soon as the token with its last byte has come; bytes that can't
 * begin or go on a character become U+FFFD, one for each maximal invalid part. finish gives U+FFFD for a character that
 * was cut off, and begins anew. The stream keeps its tokenizer alive. */
xjit_text_stream* xjit_text_stream_new(const xjit_text_tokenizer* tokenizer, bool skip_special);
void xjit_text_stream_push(xjit_text_stream* stream, uint32_t id, xjit_text_buffer* out);
void xjit_text_stream_finish(xjit_text_stream* stream, xjit_text_buffer* out);
void xjit_text_stream_free(xjit_text_stream* stream);

/* `messages` is a JSON array, `tools` JSON or missing, `kwargs` a JSON object of further variables or missing. `now` is
 * what strftime_now formats: seconds since 1970-01-01 00:00 of the wall clock. */
typedef struct {
  xjit_text_bytes messages;
  xjit_text_bytes tools;
  xjit_text_bytes kwargs;
  bool add_generation_prompt;
  int64_t now;
} xjit_text_render_request;

bool xjit_text_has_chat_template(const xjit_text_tokenizer* tokenizer);
int xjit_text_render(const xjit_text_tokenizer* tokenizer, const xjit_text_render_request* request,
                     xjit_text_buffer* out, xjit_text_buffer* message);

/* A template by itself, which is compiled only: those that come with a tokenizer are also rendered once while it is
 * loaded. The tokens are what it sees as bos_token and so on. */
typedef struct {
  xjit_text_bytes bos, eos, unk, pad;
} xjit_text_special_tokens;
int xjit_text_template_new(xjit_text_bytes source, const xjit_text_special_tokens* tokens, xjit_text_template** out,
                           xjit_text_buffer* message);
int xjit_text_template_render(const xjit_text_template* chat_template, const xjit_text_render_request* request,
                              xjit_text_buffer* out, xjit_text_buffer* message);
void xjit_text_template_free(xjit_text_template* chat_template);

#ifdef __cplusplus
}
#endif

#endif /* XJIT_FRONTEND_TEXT_XJIT_TEXT_H_ */
