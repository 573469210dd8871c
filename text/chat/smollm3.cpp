#include "text/chat/family.h"

namespace fsdp::chat {
namespace {

using Author = Transcript::Author;

enum class Mode { kThink, kNoThink };

constexpr std::string_view kNoThinking = "<think>\n\n</think>\n";

constexpr std::string_view kThinkInstructions =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face. Your role as an assistant involves "
    "thoroughly "
    "exploring questions through a systematic thinking process before providing the final precise and accurate "
    "solutions. This requires engaging in a comprehensive cycle of analysis, summarizing, exploration, reassessment, "
    "reflection, backtracking, and iteration to develop well-considered thinking process. Please structure your "
    "response "
    "into two main sections: Thought and Solution using the specified format: <think> Thought section </think> "
    "Solution "
    "section. In the Thought section, detail your reasoning process in steps. Each step should include detailed "
    "considerations such as analysing questions, summarizing relevant findings, brainstorming new ideas, verifying the "
    "accuracy of the current steps, refining any errors, and revisiting previous steps. In the Solution section, based "
    "on "
    "various attempts, explorations, and reflections from the Thought section, systematically present the final "
    "solution "
    "that you deem correct. The Solution section should be logical, accurate, and concise and detail necessary steps "
    "needed to reach the conclusion.";
constexpr std::string_view kNoThinkInstructions =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face.";

Mode mode_of(const std::string& system) {
  return system.find("/no_think") != std::string::npos ? Mode::kNoThink : Mode::kThink;
}

void write_system(const std::string& system, Transcript& out) {
  const Mode mode = mode_of(system);
  std::string instructions = replace_all(replace_all(system, "/no_think", ""), "/think", "");
  instructions.resize(strip_end(instructions).size());
  out.control("<|im_start|>");
  out.text("system\n");
  if (system.find("/system_override") != std::string::npos) {
    out.text(strip_end(replace_all(instructions, "/system_override", "")));
    out.control("<|im_end|>");
    out.text("\n");
    return;
  }
  // The day of the model's release: the template takes the day it runs on, and the same chats would give other tokens
  // tomorrow.
  out.text("## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: 08 July 2025\nReasoning Mode: ");
  out.text(mode == Mode::kThink ? "/think" : "/no_think");
  out.text("\n\n## Custom Instructions\n\n");
  out.text(!instructions.empty() ? std::string_view(instructions)
                                 : (mode == Mode::kThink ? kThinkInstructions : kNoThinkInstructions));
  out.text("\n\n");  // and no <|im_end|>: the published template writes one only after a list of tools
}

void write_question(std::string_view content, Transcript& out) {
  out.control("<|im_start|>");
  out.text("user\n");
  out.text(content);
  out.control("<|im_end|>");
  out.text("\n");
}

void write_answer_start(Mode mode, Transcript& out) {
  out.control("<|im_start|>");
  out.text("assistant\n");
  out.text(mode == Mode::kThink ? "" : kNoThinking);
}

}  // namespace

void write_smollm3(const std::vector<Message>& messages, Purpose purpose, Transcript& out) {
  const bool has_system = messages.front().role == "system";
  const std::string system = has_system ? messages.front().content : "";
  const Mode mode = mode_of(system);
  write_system(system, out);
  for (size_t i = has_system ? 1 : 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (message.role == "system") {
      throw io::Error(io::ErrorKind::kData, "[chat] format smollm3: got a system message at place " +
                                                std::to_string(i + 1) + ", expected it first. Move or remove it.");
    }
    if (message.role != "assistant") {
      write_question(message.content, out);
      continue;
    }
    write_answer_start(mode, out);
    out.text(strip_leading_newlines(message.content), Author::kModel);
    out.control("<|im_end|>", Author::kModel);
    out.text("\n");
  }
  if (purpose == Purpose::kPrompt) {
    write_answer_start(mode, out);
  }
}

}  // namespace fsdp::chat
