"""A LangGraph agent: one node asks the policy, the other acts in the environment with the tools that it offers.

It is a program of its own, and needs `langgraph`, `langchain-openai` and nothing of gagpo. Some versions of
`langchain-openai` need another `openai` than vLLM does, so it lives in a virtual environment of its own:

    python -m venv graph
    graph/bin/pip install langgraph langchain-openai

A run starts it for each episode if `agent.name` names this object, and `langchain_openai` finds the policy in the
environment variables:

    agent = AgentProgram("graph/bin/python", "examples/langgraph_agent.py")

With `gagpo serve-agent`, start it with the OPENAI_BASE_URL, OPENAI_API_KEY and GAGPO_ENV_URL of an open episode.
LangGraph's imports take seconds; for many short episodes write the graph's work as an async function instead.
"""

import os

import httpx
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

environment = httpx.Client(base_url=os.environ["GAGPO_ENV_URL"], timeout=600,
                           headers={"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"})


class Play(MessagesState):
    """The conversation so far, and whether the environment is done."""

    done: bool


def post(path, **body):
    """Asks the environment, and returns its outcome."""
    reply = environment.post(path, json=body)
    reply.raise_for_status()
    return reply.json()


def ask(state: Play):
    """Asks the policy for the next message."""
    return {"messages": [policy.invoke(state["messages"])]}


def act(state: Play):
    """Carries out the calls of the newest message. A message without calls is an action, after its thought."""
    said, heard, now = state["messages"][-1], [], None
    for call in said.tool_calls:
        now = post("/call", name=call["name"], arguments=call["args"])
        heard.append(ToolMessage(now["observation"], tool_call_id=call["id"]))
        if now["done"]:
            break
    if now is None:
        now = post("/step", action=said.text.rpartition("</think>")[2].strip())
        heard.append(HumanMessage(now["observation"]))
    return {"messages": heard, "done": now["done"]}


tools = environment.get("/tools").json()
policy = ChatOpenAI(model="policy", max_retries=0, timeout=600)
policy = policy.bind_tools(tools) if tools else policy
graph = StateGraph(Play)
graph.add_node("ask", ask)
graph.add_node("act", act)
graph.add_edge(START, "ask")
graph.add_edge("ask", "act")
graph.add_conditional_edges("act", lambda state: END if state["done"] else "ask")
start = HumanMessage(post("/reset")["observation"])
graph.compile().invoke({"messages": [start], "done": False}, {"recursion_limit": 1000})
