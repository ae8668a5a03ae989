/** The components of the pages, each loaded when it is shown first. */

import type { Component } from "svelte";
import type { PageName } from "./routes";

type Loaded = Promise<{ default: Component<{ id: string }> | Component }>;

export const COMPONENTS: Record<PageName, () => Loaded> = {
  herd: () => import("../herd/HerdPage.svelte"),
  session: () => import("../session/SessionPage.svelte"),
  replay: () => import("../replay/ReplayPage.svelte"),
  task: () => import("../task/TaskPage.svelte"),
  detail: () => import("../task/DetailPage.svelte"),
  search: () => import("../history/SearchPage.svelte"),
  statistics: () => import("../history/StatisticsPage.svelte"),
  compare: () => import("../history/ComparePage.svelte"),
  approvals: () => import("../approvals/ApprovalsPage.svelte"),
  conductor: () => import("../conductor/ConductorPage.svelte"),
  budgets: () => import("../budgets/BudgetsPage.svelte"),
  operations: () => import("../operations/OperationsPage.svelte"),
  "sign-in": () => import("./SignInPage.svelte"),
  missing: () => import("./MissingPage.svelte"),
};
