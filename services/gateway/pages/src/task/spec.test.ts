import { expect, it } from "vitest";
import { argvOf, commandOf, EMPTY, formOf, problemsOf, specOf, yamlOf } from "./spec";

const form = {
  ...EMPTY, text: "Fix Ada's 'login'\n", harness: "claude", model: "sonnet", repository: "https://forge.example/a/b", base: "main",
  pullRequest: "draft", ask: "Bash, Write", deny: "*", cost: "2.5", attemptMinutes: "10", memory: "4096", dependsOn: "task-1 task-2",
  labels: "team=web q=a=b", priority: "high", attempts: "3", files: [{ name: "a.txt", content: "hi" }],
};

it("becomes a request without empty values", () => {
  expect(specOf(form)).toEqual({
    text: "Fix Ada's 'login'",
    harness: { kind: "claude", model: "sonnet", approvals: { tools: { Bash: "ask", Write: "ask" }, otherwise: "deny" } },
    repository: { url: "https://forge.example/a/b", base: "main", pull_request: { open: "draft" } },
    files: { "a.txt": "hi" }, depends_on: ["task-1", "task-2"], priority: "high", retry: { max_attempts: 3 },
    attempt_seconds: 600, limits: { memory_mb: 4096 }, budget: { cost_micro_usd: 2_500_000 }, labels: { team: "web", q: "a=b" },
  });
  expect(specOf({ ...EMPTY, text: "x", harness: "command", program: "make test" })).toEqual({
    text: "x", harness: { kind: "command", argv: ["make", "test"] },
  });
  for (const text of ["echo $HOME && ls", "CI=1 make test", "cd src"]) expect(argvOf(text)).toEqual(["sh", "-c", text]);
});

it("becomes a file and a command line that quote every text", () => {
  expect(yamlOf(specOf(form))).toContain('tasks:\n  - text: "Fix Ada\'s \'login\'"\n    harness:\n      kind: "claude"');
  expect(yamlOf(specOf(form))).toContain('after: ["task-1", "task-2"]');
  expect(commandOf(form)).toBe(
    "sandherd run 'Fix Ada'\\''s '\\''login'\\''' --harness claude --model sonnet --repo https://forge.example/a/b --base main" +
      " --pr draft --file a.txt --depends-on task-1 --depends-on task-2 --priority high --attempts 3 --attempt-timeout 10m" +
      " --memory 4096m --ask Bash --ask Write --deny '*' --budget cost=2.5usd --label team=web --label q=a=b",
  );
  expect(commandOf({ ...EMPTY, text: "t", harness: "command", program: "a; b" })).toBe("sandherd run t -- sh -c 'a; b'");
});

it("says what is wrong, and begins with an earlier task", () => {
  expect(Object.keys(problemsOf(EMPTY))).toEqual(["text", "harness"]);
  const wrong = { ...form, repository: "git@forge", cost: "-1", labels: "team", harness: "command" };
  expect(Object.keys(problemsOf(wrong)).sort()).toEqual(["cost", "labels", "program", "repository"]);
  const earlier = formOf(
    { text: "cut", harness: "claude", repository: "local", max_attempts: 1, priority: "low", profile: "py" },
    { task: "cut off no more", labels: { team: "web", "sandherd/batch": "b" } },
  );
  expect([earlier.text, earlier.repository, earlier.labels, earlier.priority, earlier.attempts]).toEqual(["cut off no more", "", "team=web", "low", ""]);
});
