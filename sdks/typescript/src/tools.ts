// SPDX-License-Identifier: MIT
// The shell tools as a model is told of them; `Sandbox.dispatch` answers its calls. The same as in Python.

/** A tool in the form of Anthropic's API. */
export interface Tool {
  name: string;
  description: string;
  input_schema: { type: "object"; properties: Record<string, unknown>; required: string[] };
}

/** Run a command, wait for it, stop it. */
export const TOOLS: Tool[] = [
  {
    "name": "shell_exec",
    "description": "Run a shell command in the sandbox and wait for it. Files and background processes stay for later calls; the working directory and variables do not. One command runs at a time.",
    "input_schema": {
      "type": "object",
      "properties": {
        "command": {
          "type": "string",
          "description": "The command, as for `bash -c`."
        },
        "timeout": {
          "type": "integer",
          "description": "Seconds to wait for it. When they are over the command goes on; use shell_wait or shell_kill then."
        }
      },
      "required": [
        "command"
      ]
    }
  },
  {
    "name": "shell_wait",
    "description": "Wait on for the command that is running, and get its new output.",
    "input_schema": {
      "type": "object",
      "properties": {
        "timeout": {
          "type": "integer",
          "description": "Seconds to wait for it. When they are over the command goes on; use shell_wait or shell_kill then."
        }
      },
      "required": []
    }
  },
  {
    "name": "shell_kill",
    "description": "Stop the command that is running, with everything that it started.",
    "input_schema": {
      "type": "object",
      "properties": {},
      "required": []
    }
  }
];
