// `fsdp completion`: what a shell needs to complete a command line.
#include <cstdio>
#include <string>

#include "app/command_line.h"
#include "fsdp/base/error.h"
#include "train/config/option_table.h"

namespace fsdp::app {
namespace {

constexpr const char* kCompletionHelp =
    "Prints a script that completes verbs, options, configuration keys and their values.\n"
    "  bash: source <(fsdp completion bash)\n"
    "  zsh:  source <(fsdp completion zsh)      (after compinit)\n"
    "  fish: fsdp completion fish | source";

// Options are read from a verb's --help, once a shell, so that they are those of the binary that is called.
// Below `launch`, the verb is the one behind the two dashes.
constexpr const char* kBashBody = R"sh(
_fsdp_options() {
  local -n kept="_fsdp_options_${1//-/_}"
  [[ -n ${kept-} ]] || kept=$("${2:-fsdp}" "$1" --help 2>/dev/null | grep -oE -- '--[a-z][a-z0-9._-]*=?' | sort -u)
  printf '%s\n' "$kept"
}
_fsdp() {
  local line=${COMP_LINE:0:COMP_POINT} word verb='' part after=0
  local -a words
  read -ra words <<<"$line"
  if [[ $line == *' ' ]]; then word=''; else word=${words[-1]}; unset 'words[-1]'; fi
  for part in "${words[@]:1}"; do
    if [[ -z $verb && $part != -* ]]; then verb=$part
    elif [[ $verb == launch && $part == -- ]]; then verb=''; after=1; fi
  done
  COMPREPLY=()
  if [[ -z $verb ]]; then
    COMPREPLY=($(compgen -W "$_fsdp_verbs" -- "$word"))
  elif [[ $word == --*=* && -n ${_fsdp_values[${word%%=*}]-} ]]; then
    COMPREPLY=($(compgen -W "${_fsdp_values[${word%%=*}]}" -- "${word#*=}"))
  elif [[ $word == --*=* ]]; then
    COMPREPLY=($(compgen -f -- "${word#*=}"))
  elif [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$(_fsdp_options "$verb" "${words[0]}")" -- "$word"))
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}
complete -o filenames -F _fsdp fsdp
)sh";

constexpr const char* kZshBody = R"sh(
_fsdp() {
  local verb='' part word=${words[CURRENT]}
  for part in ${words[2,CURRENT-1]}; do
    if [[ -z $verb && $part != -* ]]; then verb=$part
    elif [[ $verb == launch && $part == -- ]]; then verb=''; fi
  done
  if [[ -z $verb ]]; then
    _describe 'verb' _fsdp_verbs
  elif [[ $word == --*=* && -n ${_fsdp_values[${word%%=*}]} ]]; then
    compset -P '*='
    compadd -- ${=_fsdp_values[${word%%=*}]}
  elif [[ $word == --*=* ]]; then
    compset -P '*='
    _files
  elif [[ $word == -* ]]; then
    (( ${+_fsdp_options[$verb]} )) || _fsdp_options[$verb]=$(${words[1]} $verb --help 2>/dev/null | grep -oE -- '--[a-z][a-z0-9._-]*=?' | sort -u)
    local -a plain keys
    plain=(${${(f)_fsdp_options[$verb]}:#*=})
    keys=(${(M)${(f)_fsdp_options[$verb]}:#*=})
    compadd -- $plain
    compadd -S '' -- $keys
  else
    _files
  fi
}
(( $+functions[compdef] )) && compdef _fsdp fsdp
)sh";

constexpr const char* kFishBody = R"sh(
function __fsdp_verb
  set -l verb ''
  for part in (commandline -opc)[2..-1]
    if test -z "$verb"; and not string match -q -- '-*' $part
      set verb $part
    else if test "$verb" = launch; and test $part = --
      set verb ''
    end
  end
  echo $verb
end
function __fsdp_words
  set -l verb (__fsdp_verb)
  test -n "$verb"; and fsdp $verb --help 2>/dev/null | string match -ar -- '--[a-z][a-z0-9._-]*=?' | sort -u
end
complete -c fsdp -n 'test -n "$(__fsdp_verb)"; and string match -q -- "-*" (commandline -ct)' -a '(__fsdp_words)'
)sh";

bool has_choices(const train::Option& option) { return !option.rule.choices.empty(); }

std::string joined_choices(const train::Option& option) {
  std::string text;
  for (const std::string& choice : option.rule.choices) text += (text.empty() ? "" : " ") + choice;
  return text;
}

// In single quotes, for any of the three shells; our words have no quotes in them.
std::string shell_word(const std::string& text) { return "'" + text + "'"; }

std::string bash_values() {
  std::string text = "declare -gA _fsdp_values=(";
  for (const train::Option& option : train::option_table())
    if (has_choices(option)) text += "\n  [--" + option.name + "]=" + shell_word(joined_choices(option));
  return text + "\n)\n";
}

std::string bash_script() {
  std::string names;
  for (const Verb& verb : verbs()) names += (names.empty() ? "" : " ") + std::string(verb.name);
  return "_fsdp_verbs=" + shell_word(names) + "\n" + bash_values() + kBashBody;
}

std::string zsh_script() {
  std::string names = "typeset -ga _fsdp_verbs=(";
  for (const Verb& verb : verbs()) names += "\n  " + shell_word(std::string(verb.name) + ":" + verb.summary);
  std::string values = "typeset -gA _fsdp_values _fsdp_options\n_fsdp_values=(";
  for (const train::Option& option : train::option_table())
    if (has_choices(option)) values += "\n  --" + option.name + " " + shell_word(joined_choices(option));
  return names + "\n)\n" + values + "\n)\n" + kZshBody;
}

std::string fish_script() {
  std::string text = kFishBody;
  for (const Verb& verb : verbs())
    text += "complete -c fsdp -n 'test -z \"$(__fsdp_verb)\"' -f -a " + shell_word(verb.name) + " -d " +
            shell_word(verb.summary) + "\n";
  for (const train::Option& option : train::option_table()) {
    if (!has_choices(option)) continue;
    std::string words;
    for (const std::string& choice : option.rule.choices)
      words += (words.empty() ? "" : " ") + ("--" + option.name + "=" + choice);
    text += "complete -c fsdp -n 'string match -q -- \"--" + option.name + "=*\" (commandline -ct)' -f -a " +
            shell_word(words) + "\n";
  }
  return text;
}

}  // namespace

int run_completion(const Arguments& arguments) {
  std::string shell;
  CLI::App parser(kCompletionHelp, "fsdp completion");
  parser.add_option("SHELL", shell, "bash, zsh or fish")->required();
  if (parse(parser, arguments) == Parsed::kHelpShown) return 0;
  if (shell != "bash" && shell != "zsh" && shell != "fish") {
    throw Error(ErrorCode::kUsage,
                "[completion] shell: got '" + shell + "', expected bash, zsh or fish. Name the shell you use.");
  }
  std::fputs((shell == "bash" ? bash_script() : shell == "zsh" ? zsh_script() : fish_script()).c_str(), stdout);
  return 0;
}

}  // namespace fsdp::app
